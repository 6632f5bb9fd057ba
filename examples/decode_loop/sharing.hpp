#pragma once

#include "generate.hpp"
#include "host_decoder.hpp"

#include <ostream>
#include <span>
#include <string>
#include <vector>

namespace example {

struct question {
  std::string text;
  std::vector<int> tokens;  // of the whole prompt
};

// What one of several prompts in one cache cost.
struct shared_answer {
  int there = 0;  // of its tokens, found in the cache
  generation_speed speed = {};
};

// Answers questions one after another, each in a sequence of its own that stays: what one has in common with those before
// it is not computed again. The decoder's cache has as many sequences, and keeps prefixes.
std::vector<shared_answer> answer_each(host_decoder& decode, const tokenizer& words, const std::vector<question>& asked,
                                       int limit, std::ostream& out);

// Continues a prompt, computed once, in `count` ways, which begin with its likeliest tokens. The decoder's cache has as
// many sequences.
generation_speed continue_each(host_decoder& decode, const tokenizer& words, std::span<const int> prompt, int count,
                               int limit, std::ostream& out);

// What sequences have in common.
void print_pages(std::ostream& out, const shared_pages& pages);

}  // namespace example
