#pragma once

#include <kvilt/core/types.hpp>

#include <span>
#include <vector>

namespace example {

class session;

// Greedy decoding of one sequence with one cache: what generation and timing are written for.
class decoder {
 public:
  virtual ~decoder() = default;

  // Appends the tokens, in steps as long as the cache allows, and returns the likeliest next one.
  virtual int feed(std::span<const int> tokens) = 0;

  // The likeliest token behind one more, which is not kept.
  virtual int peek(int token) = 0;

  // Of the newest prediction: [vocab].
  virtual const std::vector<float>& logits() = 0;

  virtual kvilt::idx length() const = 0;

  // Bytes of K and V that were asked for.
  virtual kvilt::idx cache_bytes() const = 0;

  // The cache, where it is in the host's memory; else null.
  virtual session* host_cache() { return nullptr; }
};

// Tokens per second, at the median, of decoding one more token behind the text that the cache holds. Leaves the cache as
// it was.
double decode_rate(decoder& decode, int token);

}  // namespace example
