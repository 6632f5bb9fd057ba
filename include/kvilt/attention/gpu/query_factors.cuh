#pragma once

#include <kvilt/attention/gpu/code_traits.cuh>
#include <kvilt/attention/gpu/rows.cuh>

namespace kvilt::inline KVILT_ABI::detail {

/// Registers of queries as factors of the scores, of the segment that takes most.
template <class Task, int DimStep, int Groups, memory_space Space, class... Segments>
consteval int factor_registers(const view<Space, Segments...>*) {
  int most = 0;
  ((most = int(larger(most, code_traits<typename Segments::k_format, DimStep>::products *
                                query_terms<Task, code_traits<typename Segments::k_format, DimStep>>()))),
   ...);
  return 2 * Groups * most;
}

/// The queries of a warp's rows as one segment's keys want them: `terms` 16-bit numbers each, whose sum they are. In
/// registers, or where these do not suffice in shared memory.
template <class Task, int DimStep, int Groups, class Segment, bool InMemory>
class query_factors {
  using u32 = ptx::u32;
  using k = code_traits<typename Segment::k_format, DimStep>;
  static constexpr u32 all = 0xffffffffu;

 public:
  static constexpr int terms = query_terms<Task, k>();

  float unit_of[Groups][2];  // of the scores of query rows 2t and 2t + 1, in log2 units
  float sum_of[Groups][2];   // of their numbers, in that unit

  /// Queries of the unit as this segment's keys want them.
  __device__ void prepare(const warp_unit<Task>& unit, const Segment& seg, u32 memory) {
    constexpr float log2_e = 1.4426950408889634f;
#pragma unroll
    for (int n = 0; n < Groups; ++n) {
      // Words t of the chunks of 16 bytes that a key has: codes i and i + spread of a word are a pair.
      constexpr int words = 2 * k::blocks;
      float x[words][2 * k::spread];
      numbers(unit, seg, n, x);
      // In fp16 the largest number of a row is brought to [1, 2): a power of two, which the score's unit takes back.
      float scale = 1;
      if constexpr (k::numbers == ptx::numbers::fp16) {
        float largest = 0;
#pragma unroll
        for (int i = 0; i < words; ++i)
#pragma unroll
          for (int j = 0; j < 2 * k::spread; ++j) largest = fmaxf(largest, fabsf(x[i][j]));
        largest = fmaxf(largest, __shfl_xor_sync(all, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(all, largest, 2));
        const int exponent = int(__float_as_uint(largest) >> 23) - 127;
        scale = __uint_as_float(u32(127 + (exponent < -100 ? -100 : exponent > 100 ? 100 : exponent)) << 23);
      }
      const float inverse = 1 / scale;
      float sum = 0;
#pragma unroll
      for (int p = 0; p < k::products; ++p) {
        u32 pair[2], rest[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float a = x[2 * (p / k::spread) + h][p % k::spread] * inverse;
          const float b = x[2 * (p / k::spread) + h][p % k::spread + k::spread] * inverse;
          pair[h] = ptx::pack<k::numbers>(a, b);
          if constexpr (terms == 2) rest[h] = ptx::pack_rest<k::numbers>(a, b, pair[h]);
          if constexpr (k::params() == param_kind::scale_zero)
            sum += ptx::from_half(pair[h]) + ptx::from_half(pair[h] >> 16);
        }
        set(memory, 0, p, n, pair);
        if constexpr (terms == 2) set(memory, 1, p, n, rest);
      }
      if constexpr (k::params() == param_kind::scale_zero) {
        sum += __shfl_xor_sync(all, sum, 1);
        sum += __shfl_xor_sync(all, sum, 2);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        unit_of[n][i] = __shfl_sync(all, scale, 4 * (2 * unit.t() + i)) * (unit.task.scale * log2_e);
        sum_of[n][i] = __shfl_sync(all, sum, 4 * (2 * unit.t() + i));
      }
    }
    __syncwarp();
  }

  /// Numbers of products with 16 of a key's, of query row g.
  __device__ void get(u32 memory, int term, int p, int n, u32 (&pair)[2]) const {
    if constexpr (InMemory)
      ptx::load_shared_8(pair, in_memory(memory, term, p, n));
    else
      pair[0] = pairs_[term][p][n][0], pair[1] = pairs_[term][p][n][1];
  }

 private:
  __device__ static u32 in_memory(u32 memory, int term, int p, int n) {
    return memory + u32((((term * k::products + p) * Groups + n) * 32 + int(threadIdx.x) % 32) * 8);
  }
  __device__ void set(u32 memory, int term, int p, int n, const u32 (&pair)[2]) {
    if constexpr (InMemory)
      ptx::store_shared_8(in_memory(memory, term, p, n), pair);
    else
      pairs_[term][p][n][0] = pair[0], pairs_[term][p][n][1] = pair[1];
  }

  /// Numbers of query row g of group `n` that are this lane's, of words t of the chunks.
  template <int Words>
  __device__ static void numbers(const warp_unit<Task>& unit, const Segment& seg, int n,
                                 float (&x)[Words][2 * k::spread]) {
    using number = typename Task::query_type;
    const int dim = unit.task.view.k_dim(), row = 8 * n + unit.g(), t = unit.t();
    if (queries_as_given<Task>() && in_eights(unit.task.q)) {
      const where w = unit.at(row);
      const number* const from = unit.task.q.at(unit.item->q_row + w.q_index, w.q_head);
#pragma unroll
      for (int i = 0; i < Words; ++i) {
        const int d = (i * 4 + t) * 2 * k::spread;
        number given[2 * k::spread] = {};
        if (row < unit.count && d < dim) load_aligned(from + d, given);
#pragma unroll
        for (int j = 0; j < 2 * k::spread; ++j) x[i][j] = load(given[j]);
      }
    } else {
      const int left = unit.count - 8 * n;
      load_queries(unit.task, seg, *unit.item, unit.head, unit.first + 8 * n,
                   left < 0   ? 0
                   : left < 8 ? left
                              : 8,
                   k::dim, unit.rows);
#pragma unroll
      for (int i = 0; i < Words; ++i)
#pragma unroll
        for (int j = 0; j < 2 * k::spread; ++j) {
          const int d = (i * 4 + t) * 2 * k::spread + j;
          x[i][j] = d < dim ? unit.rows.row(unit.g())[d] : 0.0f;
        }
    }
  }

  u32 pairs_[InMemory ? 1 : terms][InMemory ? 1 : k::products][Groups][2];
};

}  // namespace kvilt::inline KVILT_ABI::detail
