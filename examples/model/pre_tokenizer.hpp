#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace example {

// Cuts text into the pieces that byte-pair merges may not cross, by the rules that a GGUF file names in
// tokenizer.ggml.pre. Bytes that are no UTF-8 match no rule and become pieces of their own.
class pre_tokenizer {
 public:
  // Throws model_error where the name is unknown.
  explicit pre_tokenizer(const std::string& name);
  pre_tokenizer(pre_tokenizer&&) noexcept;
  pre_tokenizer& operator=(pre_tokenizer&&) noexcept;
  ~pre_tokenizer();

  std::vector<std::string_view> split(std::string_view text) const;

  // Whether a piece that is a token as it stands is taken whole, whatever the merges say.
  bool prefers_whole_tokens() const { return prefers_whole_tokens_; }

  // Whether models with these rules begin with BOS where the file does not say.
  bool adds_bos() const { return adds_bos_; }

 private:
  class expression;

  std::vector<std::unique_ptr<expression>> steps_;  // each splits what the one before left in one piece
  bool prefers_whole_tokens_ = false;
  bool adds_bos_ = false;
};

}  // namespace example
