#pragma once

#include "llama.hpp"
#include "session.hpp"

#include <span>
#include <vector>

namespace example {

// Greedy decoding of one sequence.
class decoder {
 public:
  decoder(llama_model& model, session& cache, const kvilt::host& exec) : model_(model), cache_(cache), exec_(exec) {}

  // Appends the tokens, in steps as long as the cache allows, and returns the likeliest next one.
  int feed(std::span<const int> tokens);

  // Of the newest prediction: [vocab].
  const std::vector<float>& logits() const { return logits_; }

 private:
  llama_model& model_;
  session& cache_;
  kvilt::host exec_;
  std::vector<float> hidden_;  // [tokens][hidden]
  std::vector<float> logits_;  // [vocab]
};

// Tokens per second, at the median, of decoding one by one behind the text that the cache holds.
double decode_rate(llama_model& model, session& cache, const kvilt::host& exec, int last_token);

}  // namespace example
