#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/types.hpp>

/// \file
/// What callers hand in, looked at before anything is read or written through it: pointers, counts, strides, and what
/// they multiply to.

namespace kvilt::inline KVILT_ABI::detail {

/// Numbers of a row: beyond what any model has, and so few that records and scratch of rows are counted in 32 bits.
inline constexpr int most_numbers = 1 << 16;

/// More than any memory has, and so little that sums of a hundred such are counted in 64 bits.
inline constexpr idx most_bytes = idx(1) << 56;

/// a x b, neither negative, or `most_bytes` where it would be more.
constexpr idx bytes_of(idx a, idx b) {
  return b != 0 && a > most_bytes / b ? most_bytes : a * b;
}

/// There is memory where `count` of something are to be found.
template <class... What>
void check_memory(const void* data, idx count, const What&... what) {
  expects(count <= 0 || data != nullptr, what..., " is null");
}

/// Log-sum-exps of `tokens` rows that are written each have a place of their own.
inline void check_written(natural_lse lse, idx tokens, int heads) {
  check_memory(lse.data, tokens, "the list of log-sum-exps of ", tokens, " rows");
  expects(tokens < 2 || lse.row_stride >= heads, "rows of log-sum-exps are ", lse.row_stride, " apart; there are ",
          heads, " heads");
}

/// Rows of `tokens` tokens that are written do not lie on each other, whichever of tokens and heads is the outer axis.
template <class T>
void check_written(const char* what, const rows<T>& x, idx tokens) {
  if (tokens <= 0) return;
  // NOTE: as doubles, in which no stride overflows.
  const double token = x.token_stride < 0 ? -double(x.token_stride) : double(x.token_stride);
  const double head = x.head_stride < 0 ? -double(x.head_stride) : double(x.head_stride);
  const bool one_token = tokens < 2, one_head = x.heads < 2;
  const bool apart =
      (one_token || token >= x.dim) && (one_head || head >= x.dim) &&
      (one_token || one_head || token >= head * (x.heads - 1) + x.dim || head >= token * double(tokens - 1) + x.dim);
  expects(apart, what, " of ", x.dim, " numbers lie on each other: tokens are ", x.token_stride, " and heads ",
          x.head_stride, " numbers apart");
}

}  // namespace kvilt::inline KVILT_ABI::detail
