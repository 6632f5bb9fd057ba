#pragma once

#include <kvilt/pages/token_hash.hpp>

// Hashes of which all prefixes collide.
struct one_place : kvilt::token_hash {
  using token_hash::token_hash;
  constexpr std::uint64_t place(std::uint64_t) const { return 0x123456789abcdef0u; }
};
struct one_name {
  constexpr std::uint64_t root(std::span<const std::uint64_t>) const { return 1; }
  constexpr std::uint64_t page(std::uint64_t, const kvilt::token_id*, int) const { return 1; }
  constexpr std::uint64_t place(std::uint64_t name) const { return name; }
};
// Places of which many collide.
struct few_places : kvilt::token_hash {
  using token_hash::token_hash;
  constexpr std::uint64_t place(std::uint64_t name) const { return name % 3 << 62 | name % 2 << 32; }
};
