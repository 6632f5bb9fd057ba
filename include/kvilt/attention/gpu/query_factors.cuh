#pragma once

#include <kvilt/attention/gpu/code_traits.cuh>
#include <kvilt/attention/gpu/rows.cuh>
#include <kvilt/attention/gpu/tile_ring.cuh>

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

/// The queries of a warp's rows: one set, which the segments have in turn.
template <int Registers, int Groups>
struct query_registers {
  ptx::u32 words[Registers];
  float unit_of[Groups][2];  // of the scores of query rows 2t and 2t + 1, in log2 units
  float sum_of[Groups][2];   // of their numbers, in that unit: what a score grows by if all codes do by 1
};

/// Queries as a segment's keys want them: `terms` 16-bit numbers each, whose sum they are. In registers, or where these do
/// not suffice in shared memory.
template <class Task, int DimStep, int Groups, class Segment, bool InMemory>
class query_factors {
  using u32 = ptx::u32;
  using k = code_traits<typename Segment::k_format, DimStep>;
  static constexpr u32 all = 0xffffffffu;
  static constexpr float log2_e = 1.4426950408889634f;
  using raw = raw_codes<k::kind()>;
  static constexpr bool sums = raw::exist || k::params() == param_kind::scale_zero;

 public:
  static constexpr int terms = query_terms<Task, k>();

  /// Queries of the unit as this segment's keys want them.
  template <int Registers>
  __device__ static void prepare(const warp_unit<Task>& unit, const Segment& seg, u32 memory,
                                 query_registers<Registers, Groups>& to) {
    if constexpr (are_factors) {
      if (unit.reads_eights()) return take_over(unit, memory, to);
    }
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
        scale = power_of_two_in_row(largest);
      }
      const float inverse = 1 / scale;
      float sum = 0;
#pragma unroll
      for (int p = 0; p < k::products; ++p) {
        u32 pair[2], rest[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float share = inverse / raw::times(p % k::spread);
          const float a = x[2 * (p / k::spread) + h][p % k::spread] * share;
          const float b = x[2 * (p / k::spread) + h][p % k::spread + k::spread] * share;
          pair[h] = ptx::pack<k::numbers>(a, b);
          if constexpr (terms == 2) rest[h] = ptx::pack_rest<k::numbers>(a, b, pair[h]);
          if constexpr (sums)
            sum += (ptx::from_half(pair[h]) + ptx::from_half(pair[h] >> 16)) * raw::times(p % k::spread);
        }
        set(to.words, memory, 0, p, n, pair);
        if constexpr (terms == 2) set(to.words, memory, 1, p, n, rest);
      }
      if constexpr (sums) {
        sum += __shfl_xor_sync(all, sum, 1);
        sum += __shfl_xor_sync(all, sum, 2);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        to.unit_of[n][i] = __shfl_sync(all, scale, 4 * (2 * unit.t() + i)) * (unit.task.scale * log2_e * raw::unit);
        to.sum_of[n][i] = __shfl_sync(all, sum, 4 * (2 * unit.t() + i)) / raw::unit;
      }
    }
    __syncwarp();
  }

  /// What a score of query row 2t + i is multiplied by: the same of all rows where these have no scale of their own.
  template <int Registers>
  __device__ static float unit(const query_registers<Registers, Groups>& from, const Task& task, int n, int i) {
    if constexpr (k::numbers == ptx::numbers::bf16)
      return task.scale * log2_e;
    else
      return from.unit_of[n][i];
  }
  /// Keys of a tile times queries: scores of tokens g and g + 8 of every sixteen with query rows 2t and 2t + 1 of each group,
  /// in units that `unit` says.
  template <int Steps, int Registers>
  __device__ static void multiply_keys(u32 keys, const query_registers<Registers, Groups>& q, u32 memory,
                                       float (&c)[Steps][Groups][4]) {
    constexpr int step = work_shape::tokens;
    constexpr int chains = Groups == 1 ? 2 : 1;  // of sums that wait for each other
    float sums[chains][Steps][Groups][4];
#pragma unroll
    for (int i = 0; i < chains; ++i)
#pragma unroll
      for (int s = 0; s < Steps; ++s)
#pragma unroll
        for (int n = 0; n < Groups; ++n)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            sums[i][s][n][j] = raw::exist && i == 0 ? -k::offset() * q.sum_of[n][j & 1] : 0.0f;
    const int lane = int(threadIdx.x) % 32;
    const u32 first = chunk_at<k::pitch>(lane % 16, lane / 16);
#pragma unroll
    for (int plane = 0; plane < (k::decoded ? 2 : 1); ++plane) {
#pragma unroll
      for (int block = 0; block < k::blocks; ++block) {
#pragma unroll
        for (int s = 0; s < Steps; ++s) {
          u32 m[4], a[4][k::spread];
          ptx::load_matrices(m, keys + (plane + s) * step * k::pitch + pair_at<k::pitch>(first, block));
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if constexpr (raw::exist)
              raw::unpack(m[i], a[i]);
            else
              unpack<k::kind(), k::offset()>(m[i], a[i]);
#pragma unroll
          for (int i = 0; i < k::spread; ++i) {
            const u32 factor[4] = {a[0][i], a[1][i], a[2][i], a[3][i]};
            const int p = block * k::spread + i;
#pragma unroll
            for (int n = 0; n < Groups; ++n)
#pragma unroll
              for (int term = 0; term < (plane == 0 ? terms : 1); ++term) {
                u32 pair[2];
                get(q, memory, term, p, n, pair);
                ptx::multiply_add<k::numbers>(sums[p % chains][s][n], factor, pair[0], pair[1]);
              }
          }
        }
      }
    }
#pragma unroll
    for (int s = 0; s < Steps; ++s)
#pragma unroll
      for (int n = 0; n < Groups; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          c[s][n][j] = chains == 2 ? sums[0][s][n][j] + sums[chains - 1][s][n][j] : sums[0][s][n][j];
  }

 private:
  /// Numbers of products with 16 of a key's, of query row g.
  template <int Registers>
  __device__ static void get(const query_registers<Registers, Groups>& from, u32 memory, int term, int p, int n,
                             u32 (&pair)[2]) {
    if constexpr (InMemory)
      ptx::load_shared_8(pair, memory + 256 * at(term, p, n) + u32(threadIdx.x) % 32 * 8);
    else
      pair[0] = from.words[2 * at(term, p, n)], pair[1] = from.words[2 * at(term, p, n) + 1];
  }

  __device__ static u32 at(int term, int p, int n) {
    return u32((term * k::products + p) * Groups + n);
  }
  template <int Registers>
  __device__ static void set(u32 (&words)[Registers], u32 memory, int term, int p, int n, const u32 (&pair)[2]) {
    if constexpr (InMemory)
      ptx::store_shared_8(memory + 256 * at(term, p, n) + u32(threadIdx.x) % 32 * 8, pair);
    else
      words[2 * at(term, p, n)] = pair[0], words[2 * at(term, p, n) + 1] = pair[1];
  }

  /// Are queries, as they were given, the keys' factors?
  static constexpr bool are_factors =
      queries_as_given<Task>() && k::spread == 1 && k::params() == param_kind::none && terms == 1 &&
      std::is_same_v<typename Task::query_type,
                     std::conditional_t<k::numbers == ptx::numbers::bf16, bfloat16, float16>>;
  template <int Registers>
  __device__ static void take_over(const warp_unit<Task>& unit, u32 memory, query_registers<Registers, Groups>& to) {
#pragma unroll
    for (int n = 0; n < Groups; ++n) {
      const int row = 8 * n + unit.g(), dim = row < unit.count ? unit.task.view.k_dim() : 0;
      const auto* const from = unit.query(row < unit.count ? row : 0) + 2 * unit.t();
#pragma unroll
      for (int p = 0; p < k::products; ++p) {
        u32 pair[2];
#pragma unroll
        for (int h = 0; h < 2; ++h)
          pair[h] = (2 * p + h) * 8 < dim ? *reinterpret_cast<const u32*>(from + (2 * p + h) * 8) : 0;
        set(to.words, memory, 0, p, n, pair);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) to.unit_of[n][i] = unit.task.scale * log2_e, to.sum_of[n][i] = 0;
    }
    __syncwarp();
  }

  /// Numbers of query row g of group `n` that are this lane's, of words t of the chunks.
  template <int Words>
  __device__ static void numbers(const warp_unit<Task>& unit, const Segment& seg, int n,
                                 float (&x)[Words][2 * k::spread]) {
    using number = typename Task::query_type;
    const int dim = unit.task.view.k_dim(), row = 8 * n + unit.g(), t = unit.t();
    if (queries_as_given<Task>() && unit.reads_eights()) {
      const number* const from = unit.query(row < unit.count ? row : 0);
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
      load_queries(unit, seg, 8 * n, left < 0 ? 0 : left < 8 ? left : 8, k::dim);
#pragma unroll
      for (int i = 0; i < Words; ++i)
#pragma unroll
        for (int j = 0; j < 2 * k::spread; ++j) {
          const int d = (i * 4 + t) * 2 * k::spread + j;
          x[i][j] = d < dim ? unit.rows.row(unit.g())[d] : 0.0f;
        }
    }
  }
};

}  // namespace kvilt::inline KVILT_ABI::detail
