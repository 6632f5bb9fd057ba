#pragma once

#include <kvilt/core/memory.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace kvilt::inline KVILT_ABI::detail {

/// Memory on a 64-byte line, for as much as there is of every page: on huge pages where it is large, for it is looked up
/// anywhere, and a walk through page tables costs as much as the miss itself.
template <class T>
struct line_allocator {
  using value_type = T;
  static constexpr std::size_t alignment = std::max(std::size_t(64), alignof(T));

  line_allocator() = default;
  template <class Other>
  line_allocator(const line_allocator<Other>&) {}

  T* allocate(std::size_t n) { return static_cast<T*>(allocate_heap(n * sizeof(T), alignment)); }
  void deallocate(T* p, std::size_t n) noexcept { free_heap(p, n * sizeof(T), alignment); }
  friend bool operator==(const line_allocator&, const line_allocator&) { return true; }
};

/// An entry for each page.
template <class T>
using page_array = std::vector<T, line_allocator<T>>;

}  // namespace kvilt::inline KVILT_ABI::detail
