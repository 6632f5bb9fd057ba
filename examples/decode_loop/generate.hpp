#pragma once

#include "decoder.hpp"
#include "tokenizer.hpp"

#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace example {

// The tokens of a question, in the model's chat template where it has one that we know; else those of the text alone,
// which the model continues. `before`: what the model is told first; prompts with the same begin with the same tokens.
std::vector<int> prompt_tokens(const tokenizer& words, std::string_view prompt, std::string_view before = {});

struct generation_speed {
  int prompt_tokens = 0;  // of these, those that were computed
  int answer_tokens = 0;
  double prompt_seconds = 0;
  double answer_seconds = 0;
};

// Answers greedily with up to `limit` tokens, writing text as it comes. The cache has the prompt's first tokens already,
// none or any number of them but the last. `before_last`, if given, is called when it has all but the last, outside of
// what is timed.
generation_speed answer(decoder& decode, const tokenizer& words, std::span<const int> prompt, int limit,
                        std::ostream& out, const std::function<void()>& before_last = {});

// The same from the answer's first token on; returns how many tokens it has.
int go_on(decoder& decode, const tokenizer& words, int token, int limit, std::ostream& out);

}  // namespace example
