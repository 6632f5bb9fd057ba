#pragma once

#include "support/session.hpp"

// What tests of owners say about them.
namespace support {

constexpr kvilt::cache_shape small_shape = {
    .layers = 2, .kv_heads = 2, .sequences = 3, .tokens = 90, .max_length = 60, .max_step = 6};

// What a caller may see of an owner, and every byte that it holds.
struct owner_state {
  std::vector<unsigned char> bytes;
  std::vector<idx> lengths;
  int free_sequences = 0;
  idx free_pages = 0, free_tokens = 0;
  friend bool operator==(const owner_state&, const owner_state&) = default;
};
inline owner_state state_of(const subject& owner, std::span<const sequence> open) {
  owner_state state{owner.memory().contents(), {}, owner.free_sequences(), owner.free_pages(), owner.free_tokens()};
  for (const sequence s : open) state.lengths.push_back(owner.length(s));
  return state;
}

// `operation` throws `Error` with `text` in its message, and changes nothing that can be seen.
template <class Error = kvilt::invalid_argument, class Operation>
void refuses(const subject& owner, std::vector<sequence> open, const std::string& text, Operation operation) {
  const owner_state before = state_of(owner, open);
  CHECK_THROWS_AS(operation(), Error);
  CHECK_THROWS_WITH(operation(), containing(text));
  CHECK(state_of(owner, open) == before);
}

// Steps of 3 tokens, so that every tail and window of the small policies has been passed.
inline void fill(session& s, int tag, idx tokens) {
  while (s.length(tag) < tokens) s.grow_by(host(), {{tag, int(std::min<idx>(3, tokens - s.length(tag)))}});
}

}  // namespace support
