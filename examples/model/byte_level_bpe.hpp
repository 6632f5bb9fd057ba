#pragma once

#include "gguf.hpp"
#include "pre_tokenizer.hpp"
#include "vocabulary.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace example {

// GPT-2's tokenizer: text is cut by the pre-tokenizer, and the bytes of each piece merge by the file's ranked pairs.
class byte_level_bpe {
 public:
  byte_level_bpe(const gguf_file& file, const vocabulary& vocabulary);

  // Appends the tokens of text, in which no special token is looked for.
  void encode(std::string_view text, std::vector<int>& tokens) const;

  bool adds_bos() const { return splitter_.adds_bos(); }

 private:
  struct merge {
    int rank;
    int token;
  };

  void load_merges(const gguf_file& file);
  int token_of(const std::string& bytes) const;
  void encode_piece(std::string_view piece, std::vector<int>& tokens) const;

  pre_tokenizer splitter_;
  std::unordered_map<std::string, int> tokens_;      // by the bytes they stand for
  std::array<int, 256> byte_tokens_;                 // -1 where the vocabulary lacks the byte
  std::unordered_map<std::uint64_t, merge> merges_;  // by the two tokens
};

}  // namespace example
