#pragma once

#include "decoder.hpp"

#include <span>
#include <vector>

namespace example {

// How long decoding takes behind a text.
struct decode_time {
  int depth = 0;            // tokens in the cache before the first that is timed
  double milliseconds = 0;  // a token, at the median
};

inline constexpr int timed_tokens = 32;

// Reads the text's first tokens up to each depth, in ascending order, and decodes on with the text's next ones. The
// cache has room for the greatest depth and the tokens that are timed there.
std::vector<decode_time> time_decoding(decoder& decode, std::span<const int> text, std::span<const int> depths);

}  // namespace example
