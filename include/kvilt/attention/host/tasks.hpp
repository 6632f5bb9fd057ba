#pragma once

#include <kvilt/cache/step.hpp>
#include <kvilt/core/instructions.hpp>
#include <kvilt/format/format.hpp>

namespace kvilt::inline KVILT_ABI::detail {

/// Products of query rows with the keys of a part of a tile.
struct score_task {
  const float* q = nullptr;  // [count][q_stride], 0 from `dim` on
  idx q_stride = 0;
  const std::int16_t* q_codes = nullptr;  // [count][q_stride] and a line more, where the kernel wants them
  const float* q_scale = nullptr;         // [count], of these
  const int* q_sum = nullptr;             // [count], of these
  int count = 0;
  const unsigned char* const* rows = nullptr;  // [tokens of a tile], all of them readable
  int dim = 0;
  const unsigned char* const* ahead = nullptr;  // [tokens of a tile], rows wanted soon, or null
  int first = 0, last = 0;                      // tokens of the part
  int offset = 0;                               // of integer codes
  float* out = nullptr;                         // [count][tokens of a tile], written from `first` to `last` and around
};

/// Weighted sums of the values of a part of a tile.
struct value_task {
  const float* weights = nullptr;  // [count][tokens of a tile], 0 outside the part
  int count = 0;
  const unsigned char* const* rows = nullptr;
  int dim = 0;
  const unsigned char* const* ahead = nullptr;
  int first = 0, last = 0;
  int offset = 0;
  const float* factor = nullptr;    // [count], of the sums so far
  const float* constant = nullptr;  // [count], added to every number
  const float* from = nullptr;      // [count][stride], the sums so far
  float* to = nullptr;              // [count][stride]
  idx stride = 0;
  unsigned char* scratch = nullptr;
};

/// Asks for the line at `byte` of row `t`, where a line begins: streams of short rows, and of pages, are more than
/// processors foresee. NOTE: into the second level, since the first has too few places for lines under way; and always
/// inlined, since compilers drop calls of a function that does nothing else.
KVILT_ALWAYS_INLINE void fetch_ahead(const unsigned char* const* rows, int t, int byte) {
  if (rows == nullptr || byte % int(host_tile::line) != 0) return;
  // NOTE: a number, since a token that is not there has a null row.
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(rows[t]) + std::uintptr_t(byte)), 0,
                     2);
}
/// Scales and zeros of a tile's rows, [tokens of a tile] each.
struct row_params {
  const float* scale = nullptr;
  const float* zero = nullptr;
};

inline constexpr int code_kinds = 7;

/// The host's kernels in one set of instructions. Rows of codes are [dim] numbers of one kind.
struct host_kernels {
  using score_kernel = void (*)(const score_task&);
  using value_kernel = void (*)(const value_task&);

  score_kernel multiply_keys[code_kinds] = {};
  value_kernel add_values[code_kinds] = {};
  /// By integers, of queries that `quantise_query` has made integers; null where there are none.
  score_kernel multiply_integer_keys[code_kinds] = {};
  value_kernel add_integer_values[code_kinds] = {};
  void (*quantise_query)(code_kind, const float* q, int dim, std::int16_t* codes, float& scale, int& sum) = nullptr;

  bool (*weigh)(float* scores, float& maximum, float& sum, float& factor) = nullptr;
  void (*scale_products)(const float* products, const row_params&, float query_sum, float factor, int first, int last,
                         float* scores) = nullptr;
  float (*scale_weights)(const float* weights, const row_params&, float* out) = nullptr;
  void (*blend)(float* to, float& to_sum, float a, const float* from, float from_sum, float b, idx count) = nullptr;
  void (*widen_halves)(const std::uint16_t* from, float* to) = nullptr;
};

}  // namespace kvilt::inline KVILT_ABI::detail
