#pragma once

#include <kvilt/core/config.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace kvilt::inline KVILT_ABI {

/// What tells bytes from bytes that were torn or flipped: the same answer for the same bytes, on every machine.
///   `static constexpr const char* name()`    as files name it: up to 15 characters
///   `static std::uint64_t of(std::uint64_t before, const unsigned char* bytes, std::size_t count)`
///                                            of these bytes behind others, whose checksum is `before`; 0: behind none.
///                                            Another `before` gives another answer for the same bytes
/// No protection against who changes bytes on purpose, unless a model says so.
template <class C>
concept checksum = requires(std::uint64_t before, const unsigned char* bytes, std::size_t count) {
  { C::name() } -> std::convertible_to<const char*>;
  { C::of(before, bytes, count) } -> std::same_as<std::uint64_t>;
};

}  // namespace kvilt::inline KVILT_ABI
