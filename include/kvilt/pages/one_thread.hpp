#pragma once

#include <kvilt/core/types.hpp>

#include <cstddef>
#include <cstdint>

namespace kvilt::inline KVILT_ABI::detail {

/// What a `page_manager` that one thread uses does with words that others might look at: nothing.
struct one_thread {
  static constexpr std::size_t alignment = alignof(idx);  // of what a step touches of a sequence
  static std::uint32_t load(const std::uint32_t& word) { return word; }
  static void store(std::uint32_t& word, std::uint32_t value) { word = value; }
};

}  // namespace kvilt::inline KVILT_ABI::detail
