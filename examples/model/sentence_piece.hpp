#pragma once

#include "gguf.hpp"
#include "vocabulary.hpp"

#include <array>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace example {

// SentencePiece's byte-pair tokenizer (Llama 1 and 2, Mistral): characters merge into the token of the best score,
// across words, and a character that is no token falls back to its bytes.
class sentence_piece {
 public:
  sentence_piece(const gguf_file& file, const vocabulary& vocabulary);

  // Appends the tokens of text, in which no special token is looked for. `after_special`: the text starts a sequence
  // or follows a special token, where the file's models expect a space in front.
  void encode(std::string_view text, bool after_special, std::vector<int>& tokens) const;

  bool adds_space_prefix() const { return adds_space_prefix_; }

 private:
  void append_bytes(std::string_view bytes, std::vector<int>& tokens) const;

  bool adds_space_prefix_;
  int unknown_token_;                                 // -1 where there is none
  std::unordered_map<std::string_view, int> tokens_;  // by spelling
  std::vector<float> scores_;
  std::array<int, 256> byte_tokens_;  // -1 where the vocabulary lacks the byte
};

}  // namespace example
