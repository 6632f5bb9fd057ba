#pragma once

#include <kvilt/attention/gpu/code_traits.cuh>
#include <kvilt/attention/gpu/key_loader.cuh>
#include <kvilt/attention/gpu/rows.cuh>

namespace kvilt::inline KVILT_ABI::detail {

/// Blocks of 16 numbers of a result, of the segment that has most.
template <int DimStep, memory_space Space, class... Segments>
consteval int result_blocks(const view<Space, Segments...>*) {
  int most = 0;
  ((most = int(larger(most, code_traits<typename Segments::v_format, DimStep>::blocks *
                                code_traits<typename Segments::v_format, DimStep>::spread))),
   ...);
  return most;
}

/// Do values of any segment have zeros, whose weighted sum is kept apart?
template <int DimStep, memory_space Space, class... Segments>
consteval bool values_have_zeros(const view<Space, Segments...>*) {
  return ((code_traits<typename Segments::v_format, DimStep>::params() == param_kind::scale_zero) || ...);
}

/// Powers of two that weights go up to, and that a new reference makes of the largest. In fp16 they are at the upper end
/// of what there is: V's scales are parts of the weights, and those of quantised tokens beside tokens in 16 bit lie far
/// below, where bits go and then all. The range of bf16 is that of V's numbers, whose products are to stay finite.
template <int DimStep, class View>
struct weight_range;
template <int DimStep, memory_space Space, class... Segments>
struct weight_range<DimStep, view<Space, Segments...>> {
  static constexpr bool halves =
      ((code_traits<typename Segments::v_format, DimStep>::numbers == ptx::numbers::fp16) || ...);
  static constexpr float most = halves ? 15 : 6, usual = halves ? 13 : 4;
};

/// Sums of weighted values of a warp's query rows and of the weights, relative to a reference that follows the largest
/// weight: in registers, as the tensor cores deal them out.
template <class Task, int DimStep, int Groups>
class partial_results {
  using view_type = typename Task::view_type;
  using u32 = ptx::u32;
  template <class Format>
  using traits = code_traits<Format, DimStep>;
  static constexpr int tokens = work_shape::tokens;
  static constexpr u32 all = 0xffffffffu;
  template <int Steps>
  using scores = float[Steps][Groups][4];

 public:
  static constexpr int blocks = result_blocks<DimStep>(static_cast<const view_type*>(nullptr));
  static constexpr int registers = 4 * Groups * blocks;  // of the values alone
  using weights = weight_range<DimStep, view_type>;

  __device__ void clear() {
#pragma unroll
    for (int n = 0; n < Groups; ++n) {
#pragma unroll
      for (int i = 0; i < blocks; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) out_[i][n][j] = 0;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        sum_[n][k] = 0, reference_[n][k] = lowest;
        if constexpr (zeros) zero_[n][k] = 0;
      }
    }
    spread_ = 0;
  }

  /// A new reference, which makes the largest weight the usual one.
  template <int Steps>
  __device__ void raise(const scores<Steps>& c) {
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float high = fmaxf(c[0][n][i], c[0][n][2 + i]);
#pragma unroll
        for (int s = 1; s < Steps; ++s) high = fmaxf(high, fmaxf(c[s][n][i], c[s][n][2 + i]));
#pragma unroll
        for (int step = 4; step < 32; step *= 2) high = fmaxf(high, __shfl_xor_sync(all, high, step));
        const float now = fmaxf(reference_[n][i], high - weights::usual);
        const float factor = ptx::exp2(reference_[n][i] - now);
        reference_[n][i] = now;
        sum_[n][i] *= factor;
        if constexpr (zeros) zero_[n][i] *= factor;
#pragma unroll
        for (int b = 0; b < blocks; ++b) out_[b][n][i] *= factor, out_[b][n][2 + i] *= factor;
      }
  }

  /// To the sums, weights without the values' scales.
  template <param_kind Params>
  __device__ void add_weights(const float (&w)[Groups][4], const float (&v_inverse)[2], const float (&v_zero)[2]) {
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (Params == param_kind::none)
          sum_[n][j & 1] += w[n][j];
        else
          sum_[n][j & 1] += w[n][j] * v_inverse[j / 2];
        if constexpr (Params == param_kind::scale_zero) zero_[n][j & 1] += w[n][j] * v_zero[j / 2];
      }
  }

  /// Weights times values.
  template <class Segment, int Steps>
  __device__ void multiply_values(u32 values, const scores<Steps>& w) {
    using v = traits<typename Segment::v_format>;
    constexpr int terms = v::numbers == ptx::numbers::bf16 ? 2 : 1;
    u32 p[terms][Steps][Groups][2];
#pragma unroll
    for (int s = 0; s < Steps; ++s)
#pragma unroll
      for (int n = 0; n < Groups; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float low = w[s][n][2 * h], high = w[s][n][2 * h + 1];
          const u32 packed = ptx::pack<v::numbers>(low, high);
          p[0][s][n][h] = ptx::transpose(packed);
          if constexpr (terms == 2) p[1][s][n][h] = ptx::transpose(ptx::pack_rest<v::numbers>(low, high, packed));
        }
    const u32 first = chunk_at<v::pitch>(warp_unit<Task>::lane() / 16 * 8 + warp_unit<Task>::lane() % 8,
                                         warp_unit<Task>::lane() / 8 % 2);
#pragma unroll
    for (int plane = 0; plane < (v::decoded ? 2 : 1); ++plane) {
#pragma unroll
      for (int block = 0; block < v::blocks; ++block) {
#pragma unroll
        for (int s = 0; s < Steps; ++s) {
          u32 m[4];
          ptx::load_transposed(m, values + (plane + s) * tokens * v::pitch + pair_at<v::pitch>(first, block));
          u32 a[4][v::spread];
#pragma unroll
          for (int i = 0; i < 4; ++i) unpack<v::kind(), v::offset()>(m[i], a[i]);
#pragma unroll
          for (int i = 0; i < v::spread; ++i) {
            const u32 factor[4] = {a[0][i], a[1][i], a[2][i], a[3][i]};
#pragma unroll
            for (int n = 0; n < Groups; ++n)
#pragma unroll
              for (int term = 0; term < (plane == 0 ? terms : 1); ++term)
                ptx::multiply_add<v::numbers>(out_[block * v::spread + i][n], factor, p[term][s][n][0],
                                              p[term][s][n][1]);
          }
        }
      }
    }
  }

  /// In log2 units, of query row 2t + i of group `n`.
  __device__ float reference(int n, int i) const {
    return reference_[n][i];
  }

  /// Results in the order in which a segment of another kind of codes has its numbers.
  template <int Spread>
  __device__ void reorder(const warp_unit<Task>& unit) {
    if constexpr (view_type::segments > 1) {
      if (spread_ != 0 && spread_ != Spread) {
        const int dim = unit.task.view.v_dim();
#pragma unroll
        for (int n = 0; n < Groups; ++n) {
          to_rows(unit, n, {0, 0});
#pragma unroll
          for (int b = 0; b < blocks; ++b)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const int d = number_of(Spread, b, j / 2);
              out_[b][n][j] = d < dim ? unit.rows.row(2 * unit.t() + j % 2)[d] : 0.0f;
            }
        }
        __syncwarp();
      }
    }
    spread_ = Spread;
  }

  /// Writes the unit's results, or the part of them that is this team's; else they stay in the unit's rows.
  __device__ void leave(const warp_unit<Task>& unit, int team, int head_of_team, int first_row) {
#pragma unroll
    for (int n = 0; n < Groups; ++n) {
      if (8 * n >= unit.count) break;
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
          sum_[n][i] += __shfl_xor_sync(all, sum_[n][i], step);
          if constexpr (zeros) zero_[n][i] += __shfl_xor_sync(all, zero_[n][i], step);
        }
      if constexpr (zeros)
        to_rows(unit, n, zero_[n]);
      else
        to_rows(unit, n, {0, 0});
      if (unit.g() == 0)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          unit.rows.maximum(2 * unit.t() + i) = reference_[n][i];
          unit.rows.sum(2 * unit.t() + i) = sum_[n][i];
        }
      __syncwarp();
      if constexpr (Task::writes) {
        const int here = unit.count - 8 * n < 8 ? unit.count - 8 * n : 8;
        if (unit.opens && unit.closes)
          write_results(unit.task, unit.item, unit.head, unit.first + 8 * n, here, unit.rows);
        else
          write_piece(unit, unit.task.piece(team, !unit.opens, head_of_team), first_row + 8 * n, here);
      } else {
        static_assert(Groups == 1, "a warp has eight rows");
      }
    }
  }
  __device__ static void write_piece(const warp_unit<Task>& unit, float* piece, int first, int count) {
    const int stride = unit.task.v_stride(), all_rows = unit.task.work.shape.rows;
    for (int r = 0; r < count; ++r)
      for (int d = 4 * unit.lane(); d < stride; d += 128)
        *reinterpret_cast<float4*>(piece + idx(first + r) * stride + d) =
            *reinterpret_cast<float4*>(unit.rows.row(r) + d);
    if (unit.lane() < count) {
      piece[idx(all_rows) * stride + first + unit.lane()] = unit.rows.maximum(unit.lane());
      piece[idx(all_rows) * (stride + 1) + first + unit.lane()] = unit.rows.sum(unit.lane());
    }
    __syncwarp();
  }

 private:
  /// Which of a row's numbers number `i` of block `b` is, of those in a lane's `out_`; more than the row has beyond it.
  __device__ static int number_of(int spread, int block, int upper) {
    return (2 * (block / spread) + upper) * 8 * spread + warp_unit<Task>::g() * spread + block % spread;
  }

  /// The order of `out_`, which is known where there is but one.
  __device__ int spread() const {
    if constexpr (view_type::segments == 1)
      return traits<
          typename std::remove_cvref_t<decltype(static_cast<const view_type*>(nullptr)->first())>::v_format>::spread;
    else
      return spread_ ? spread_ : 1;
  }

  /// Results of group `n` as rows, each number more by `zero`.
  __device__ void to_rows(const warp_unit<Task>& unit, int n, const float (&zero)[2]) const {
    const int dim = unit.task.view.v_dim(), spread = this->spread();
    __syncwarp();
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int d = number_of(spread, b, j / 2);
        if (d < dim) unit.rows.row(2 * unit.t() + j % 2)[d] = out_[b][n][j] + zero[j % 2];
      }
    __syncwarp();
  }

  static constexpr bool zeros = values_have_zeros<DimStep>(static_cast<const view_type*>(nullptr));
  static constexpr float lowest = -1e30f;  // below every score, and finite: what is hidden has weight 0 beside it

  float out_[blocks][Groups][4];  // numbers by number_of, of query rows 2t and 2t + 1
  float sum_[Groups][2], reference_[Groups][2];
  float zero_[zeros ? Groups : 1][2];
  int spread_ = 0;
};

}  // namespace kvilt::inline KVILT_ABI::detail
