#pragma once

#include "session.hpp"
#include "transformer.hpp"

#include <span>
#include <vector>

namespace example {

// Greedy decoding of one sequence.
class decoder {
 public:
  decoder(transformer& model, session& cache, const kvilt::host& exec, arithmetic how = arithmetic::fp32)
      : model_(model), cache_(cache), exec_(exec), how_(how) {}

  // Appends the tokens, in steps as long as the cache allows, and returns the likeliest next one.
  int feed(std::span<const int> tokens);

  // The likeliest token behind one more, which is not kept.
  int peek(int token);

  // Of the newest prediction: [vocab].
  const std::vector<float>& logits() const { return logits_; }

 private:
  void run(std::span<const int> tokens);
  int predict();

  transformer& model_;
  session& cache_;
  kvilt::host exec_;
  arithmetic how_;
  std::vector<float> hidden_;  // [tokens][hidden]
  std::vector<float> logits_;  // [vocab]
};

// Tokens per second, at the median, of decoding one more token behind the text that the cache holds. Leaves the cache as
// it was.
double decode_rate(transformer& model, session& cache, const kvilt::host& exec, int token,
                   arithmetic how = arithmetic::fp32);

}  // namespace example
