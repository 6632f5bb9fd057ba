#pragma once

#include "decoder.hpp"
#include "tokenizer.hpp"

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace example {

// The tokens of a question, in the model's chat template where it has one that we know; else those of the text alone,
// which the model continues.
std::vector<int> prompt_tokens(const tokenizer& words, std::string_view prompt);

struct generation_speed {
  int prompt_tokens = 0;
  int answer_tokens = 0;
  double prompt_seconds = 0;
  double answer_seconds = 0;
};

// Answers greedily with up to `limit` tokens, writing text as it comes.
generation_speed answer(decoder& decode, const tokenizer& words, const std::vector<int>& prompt, int limit,
                        std::ostream& out);

}  // namespace example
