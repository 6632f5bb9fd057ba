#pragma once

#include "tokenizer.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace example {

// What a cache is asked for of what it has read long before.
struct probe_request {
  std::string name;            // "copy" or "retrieval"
  std::vector<double> depths;  // ascending: percent of the other text that comes before each of the places asked for
  std::uint64_t seed = 1;
};

// Tokens [first, first + count) of a probe's text, which the model is to predict.
struct probe_answer {
  double depth = 0;
  int first = 0;
  int count = 0;
};

// A text that holds something at each depth, and asks for it behind its end.
struct probe_text {
  std::vector<int> tokens;
  int asked_from = 0;  // the questions and their answers are from here on
  std::vector<probe_answer> answers;
};

inline constexpr int copied_tokens = 64;  // of a passage
inline constexpr int cue_tokens = 16;     // of these, as many are given again
inline constexpr int listed_pairs = 8;    // of keys and values at each depth
inline constexpr int asked_pairs = 4;     // of these, as many are asked for

// Throws std::invalid_argument for a name that is none, and for depths that do not ascend from 0 to 100.
void check_probe(const probe_request& request);

// As many tokens as `window`, a text that begins as the model's texts do, of which what has room stays. At each depth:
//   copy       a passage of tokens drawn from the window at random, so that nothing but the passage says what follows.
//              Asked for by its first tokens: an induction, as in C. Olsson et al., "In-context learning and induction
//              heads", 2022
//   retrieval  lines "key: value" of random letters and digits. Asked for by a key (N. F. Liu et al., "Lost in the
//              middle: how language models use long contexts", 2023)
// The questions come in random order, each with its answer, which those behind it see. Throws std::invalid_argument as
// `check_probe` does, and where the window has no room.
probe_text probe_text_of(const probe_request& request, std::span<const int> window, const tokenizer& words);

}  // namespace example
