#pragma once

#include <kvilt/attention/gpu/task.cuh>
#include <kvilt/core/floats.hpp>
#include <kvilt/format/rotate.hpp>

/// \file
/// Eight rows of floats in a warp's shared memory: queries on their way to the tensor cores, results on their way out.

namespace kvilt::inline KVILT_ABI::detail {

/// [8][stride]; beside each row: its maximum and sum as a result, its unit and the sum of its numbers as a query.
struct warp_rows {
  float* data = nullptr;
  int stride = 0;

  __device__ float* row(int r) const { return data + r * stride; }
  __device__ float& note(int r, int i) const { return data[(r + 1) * stride - device_row_notes + i]; }
  __device__ float& maximum(int r) const { return note(r, 0); }
  __device__ float& sum(int r) const { return note(r, 1); }
};

/// The rotation of the `count` rows' numbers [0, dim), by the warp.
template <class Rotation, bool Inverse>
__device__ void rotate_rows(const warp_rows& x, int count, int dim) {
  const int lane = int(threadIdx.x) % 32;
  if constexpr (std::is_same_v<Rotation, hadamard>) {
    const int block = power_of_two_divisor(dim), half_dim = dim / 2;
    for (int half = 1; half < block; half *= 2) {
      for (int i = lane; i < count * half_dim; i += 32) {
        const int r = i / half_dim, pair = i - r * half_dim, low = (pair & ~(half - 1)) * 2 + (pair & (half - 1));
        float* const row = x.row(r) + low;
        const float a = row[0], b = row[half];
        row[0] = a + b;
        row[half] = a - b;
      }
      __syncwarp();
    }
    const float norm = rsqrtf(float(block));
    for (int i = lane; i < count * dim; i += 32) x.row(i / dim)[i % dim] *= norm;
  } else if constexpr (!std::is_same_v<Rotation, no_rotation>) {
    if (lane < count) {
      if constexpr (Inverse)
        Rotation::inverse(x.row(lane), dim);
      else
        Rotation::forward(x.row(lane), dim);
    }
  }
  __syncwarp();
}

/// Rows [first, first + count) of the sequence's queries, at most eight, in the view's rotation; those of eight that
/// there are not, and numbers beyond `dim` up to `padded`, are 0.
template <class Task, class Segment>
__device__ void load_queries(const Task& task, const Segment& seg, const step_item& item, int head, int first,
                             int count, int padded, const warp_rows& to) {
  const int lane = int(threadIdx.x) % 32, dim = task.view.k_dim();
  __syncwarp();
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    const where w = where_of(task, item, head, first + (r < count ? r : 0));
    const auto* const from = task.q.at(item.q_row + w.q_index, w.q_head);
    for (int d = lane; d < padded; d += 32) to.row(r)[d] = r < count && d < dim ? load(from[d]) : 0.0f;
  }
  __syncwarp();
  if constexpr (std::is_same_v<typename Task::positions_type, cache_positions> &&
                requires { seg.retention.in_cache(idx()); }) {
    if (lane < count) {
      const idx position = where_of(task, item, head, first + lane).q_position;
      task.positions.turn.shift(to.row(lane), seg.retention.in_cache(position) - position);
    }
    __syncwarp();
  }
  rotate_rows<typename Task::view_type::k_rotation, false>(to, count, dim);
}

/// Writes the results of rows [first, first + count) of a sequence, at most eight: sums of weighted values, beside them
/// the maximum in log2 units and the sum of weights.
template <class Task>
__device__ void write_results(const Task& task, const step_item& item, int head, int first, int count,
                              const warp_rows& x) {
  constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;
  const int lane = int(threadIdx.x) % 32, dim = task.view.v_dim();
  __syncwarp();
  rotate_rows<typename Task::view_type::v_rotation, true>(x, count, dim);
  for (int r = 0; r < count; ++r) {
    const where w = where_of(task, item, head, first + r);
    float maximum = x.maximum(r), sum = x.sum(r), share = 1;
    if constexpr (has_sink<typename Task::variant_type>) {
      const float sink = task.variant.sink(w.q_head) * log2_e, high = sink > maximum ? sink : maximum;
      share = ptx::exp2(maximum - high);
      sum = sum * share + ptx::exp2(sink - high);
      maximum = high;
    }
    const float factor = sum == 0 ? 0.0f : share / sum;
    auto* const to = task.out.at(item.q_row + w.q_index, w.q_head);
    for (int d = lane; d < dim; d += 32) store(to[d], x.row(r)[d] * factor);
    if (task.lse && lane == 0)
      task.lse.at(item.q_row + w.q_index, w.q_head) = sum == 0 ? -__builtin_huge_valf() : (maximum + log2f(sum)) * ln_2;
  }
  __syncwarp();
}

}  // namespace kvilt::inline KVILT_ABI::detail
