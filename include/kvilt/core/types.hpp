#pragma once

#include <kvilt/core/config.hpp>

#include <cstdint>

namespace kvilt::inline KVILT_ABI {

/// Counts, offsets and positions: 64 bits from the first multiply.
using idx = std::int64_t;

/// A page of a pool; -1 names no page.
using page_id = std::int32_t;

namespace detail {
inline constexpr idx no_end = idx(1) << 62;
}

/// Stands for a size that is known at run time only.
inline constexpr int dynamic = -1;

/// Where a view's bytes live: part of every view's type, so that mixing host and device does not compile.
enum class memory_space : unsigned char { host, device };

/// A size fixed in the type, or held as a value where `N` is `dynamic`.
template <int N>
struct extent {
  constexpr extent() = default;
  KVILT_HD constexpr explicit extent(int) {}
  KVILT_HD static constexpr int get() { return N; }
};
template <>
struct extent<dynamic> {
  constexpr extent() = default;
  KVILT_HD constexpr explicit extent(int n) : value_(n) {}
  KVILT_HD constexpr int get() const { return value_; }

 private:
  int value_ = 0;
};

/// An owner's name for a sequence; stale after `close`, which every verb detects.
struct sequence {
  int slot = -1;
  std::uint32_t generation = 0;
  friend bool operator==(const sequence&, const sequence&) = default;
};

/// Rows of a caller's tensor: row (token, head) is `dim` adjacent numbers.
/// Strides are in elements, so that fused QKV buffers and padded heads are taken as they lie.
template <class T>
struct rows {
  T* data = nullptr;  // [tokens][heads][dim]
  idx token_stride = 0;
  idx head_stride = 0;
  int heads = 0;
  int dim = 0;

  KVILT_HD constexpr T* at(idx token, int head) const { return data + token * token_stride + head * head_stride; }
};

/// Rows that lie side by side: [tokens][heads][dim].
template <class T>
KVILT_HD constexpr rows<T> packed_rows(T* data, int heads, int dim) {
  return {data, idx(heads) * dim, dim, heads, dim};
}

/// How long one sequence is in one step, in tokens. `[0, before)` is committed, `[before, after)` is appended by the
/// step. With a 16-bit tail, tokens below `body_before` have left it already and `[body_before, body_after)` leave it
/// in this step; without one both body fields are equal to the length.
struct lengths {
  idx before = 0;
  idx after = 0;
  idx body_before = 0;
  idx body_after = 0;
};

/// A range of positions, empty where `last <= first`.
struct position_range {
  idx first = 0;
  idx last = 0;
};

/// A natural logarithm of a sum of exponentials, per (query row, query head); the type says the base.
struct natural_lse {
  float* data = nullptr;  // [query rows][q heads]
  idx row_stride = 0;

  KVILT_HD constexpr explicit operator bool() const { return data != nullptr; }
  KVILT_HD constexpr float& at(idx row, int head) const { return data[row * row_stride + head]; }
};

}  // namespace kvilt::inline KVILT_ABI
