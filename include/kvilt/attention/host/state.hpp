#pragma once

#include <kvilt/attention/host/tasks.hpp>

#include <algorithm>
#include <cmath>

namespace kvilt::inline KVILT_ABI::detail {

/// Partial softmaxes of up to `host_tile::rows` query rows: outputs not yet divided by their sums.
struct row_states {
  float* out = nullptr;      // [rows][stride]
  float* maximum = nullptr;  // [rows], of the scores
  float* sum = nullptr;      // [rows], of e^(score - maximum)
  idx stride = 0;            // v_dim in whole vectors

  static constexpr idx stride_for(idx v_dim) { return round_up(v_dim, host_tile::vector); }
  static constexpr idx floats(idx rows, idx v_dim) { return rows * (stride_for(v_dim) + 2); }

  static row_states at(float* memory, idx rows, idx v_dim) {
    const idx stride = stride_for(v_dim);
    return {memory, memory + rows * stride, memory + rows * stride + rows, stride};
  }

  /// No key was seen: the identity of `add`.
  void clear(int rows) const {
    std::fill_n(out, rows * stride, 0.0f);
    std::fill_n(maximum, rows, -__builtin_huge_valf());
    std::fill_n(sum, rows, 0.0f);
  }

  /// Adds a key to row `r` whose value is 0.
  void add_sink(int r, float logit) const {
    if (logit == -__builtin_huge_valf()) return;
    if (logit > maximum[r]) {
      const float factor = std::exp(maximum[r] - logit);
      sum[r] *= factor;
      for (idx d = 0; d < stride; ++d) out[r * stride + d] *= factor;
      maximum[r] = logit;
    }
    sum[r] += std::exp(logit - maximum[r]);
  }

  /// Adds the states of keys that come after.
  void add(const host_kernels& kernels, const row_states& next, int rows) const {
    for (int r = 0; r < rows; ++r) {
      if (next.sum[r] == 0) continue;  // NOTE: not the maximum: that of NaNs alone is -infinity too
      const float high = std::max(maximum[r], next.maximum[r]);
      const float here = maximum[r] == high ? 0.0f : maximum[r] - high;
      const float there = next.maximum[r] == high ? 0.0f : next.maximum[r] - high;
      kernels.blend(out + r * stride, sum[r], here, next.out + r * stride, next.sum[r], there, stride);
      maximum[r] = high;
    }
  }
};

}  // namespace kvilt::inline KVILT_ABI::detail
