#pragma once

#include <kvilt/core/types.hpp>

#include <concepts>
#include <cstdint>
#include <span>

namespace kvilt::inline KVILT_ABI {

/// A token's number in its vocabulary; where an image stands, whatever tells it from other images.
using token_id = std::int32_t;

/// Names of prefixes, the same in every process for the same `key`: a prefix is named by its root, and one page further
/// on by the name so far and that page's tokens. With x the 128-bit product a * b, fold(a, b) = low(x) ^ high(x)
/// (multiply and fold: Wang Yi, "wyhash", 2019). c0, c1, ... are SplitMix64 of the key (Steele, Lea, Flood, "Fast
/// splittable pseudorandom number generators", 2014).
///
///     words(w...) = c0, then for each pair (a, b) of 64-bit words   h = fold(h ^ a, c1 ^ b)
///     root(keys)  = fold(words(keys) ^ c2, number of keys ^ c3)
///     page(h, t)  = fold(words(t) ^ c2, h ^ c3), two tokens to a word, the first in its lower half
///
/// A missing word is 0. Whoever has not the key cannot choose prefixes that collide; those that do cost time, never a
/// wrong page.
class token_hash {
 public:
  constexpr explicit token_hash(std::uint64_t key = 0) {
    for (std::uint64_t& c : c_) {
      key += 0x9e3779b97f4a7c15u;
      std::uint64_t z = key;
      z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
      z = (z ^ z >> 27) * 0x94d049bb133111ebu;
      c = z ^ z >> 31;
    }
  }

  /// Of the empty prefix under `keys`: tenant, adapter, digests.
  constexpr std::uint64_t root(std::span<const std::uint64_t> keys) const {
    std::uint64_t h = c_[0];
    for (std::size_t i = 0; i < keys.size(); i += 2)
      h = fold(h ^ keys[i], c_[1] ^ (i + 1 < keys.size() ? keys[i + 1] : 0));
    return fold(h ^ c_[2], keys.size() ^ c_[3]);
  }

  /// Where an index looks for a name.
  constexpr std::uint64_t place(std::uint64_t name) const { return name; }

  /// Of the prefix `before` and the page of `count` tokens after it.
  constexpr std::uint64_t page(std::uint64_t before, const token_id* tokens, int count) const {
    std::uint64_t h = c_[0];
    int i = 0;
    for (; i + 4 <= count; i += 4) h = fold(h ^ pair(tokens + i), c_[1] ^ pair(tokens + i + 2));
    if (i < count) {
      token_id rest[4] = {};
      for (int j = 0; i + j < count; ++j) rest[j] = tokens[i + j];
      h = fold(h ^ pair(rest), c_[1] ^ pair(rest + 2));
    }
    // NOTE: pages are independent of each other up to here; one multiply a page is in the chain.
    return fold(h ^ c_[2], before ^ c_[3]);
  }

 private:
  static constexpr std::uint64_t pair(const token_id* t) {
    return std::uint32_t(t[0]) | std::uint64_t(std::uint32_t(t[1])) << 32;
  }
  static constexpr std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
    __extension__ using wide = unsigned __int128;
    const wide x = wide(a) * b;
    return std::uint64_t(x) ^ std::uint64_t(x >> 64);
  }

  std::uint64_t c_[4] = {};
};

/// What names prefixes, and says where an index looks for a name: same arguments, same answer. Which prefixes share a
/// name or a place changes how long it takes to find them, never what is found.
template <class H>
concept prefix_hash = requires(const H h, std::span<const std::uint64_t> keys, const token_id* tokens) {
  { h.root(keys) } -> std::same_as<std::uint64_t>;
  { h.page(std::uint64_t(), tokens, 1) } -> std::same_as<std::uint64_t>;
  { h.place(std::uint64_t()) } -> std::same_as<std::uint64_t>;
};
static_assert(prefix_hash<token_hash>);

}  // namespace kvilt::inline KVILT_ABI
