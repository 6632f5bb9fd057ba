#pragma once

#include <kvilt/attention/gpu/warp_attention.cuh>
#include <kvilt/gpu/gpu.cuh>

namespace kvilt::inline KVILT_ABI::detail {

/// Groups of eight query rows that a warp keeps in registers at once; more rows take more passes over the keys.
template <class Task, int DimStep>
constexpr int most_groups() {
  using view_type = typename Task::view_type;
  constexpr auto of_segments = []<memory_space Space, class... Segments>(const view<Space, Segments...>*) {
    constexpr bool wide = ((padded_dim<typename Segments::k_format>(DimStep) > 128 ||
                            padded_dim<typename Segments::v_format>(DimStep) > 128) ||
                           ...);
    constexpr bool pairs = ((query_terms<Task, code_traits<typename Segments::k_format, DimStep>>() == 2) || ...);
    return (wide ? 2 : 4) / (pairs ? 2 : 1);
  };
  return of_segments(static_cast<const view_type*>(nullptr));
}

/// Attention of a block's teams: what is whole goes to the output, the rest to the pieces.
template <class Task, int DimStep, int Groups>
__device__ void attend_block(const Task& task, unsigned char* memory) {
  const work_shape& shape = task.work.shape;
  const int warp = int(threadIdx.x) / 32, teams_here = shape.warps / shape.heads;
  const int team = int(blockIdx.x) * teams_here + warp / shape.heads;
  using attention = warp_attention<Task, DimStep, Groups>;
  attention attend(task, memory + warp * attention::memory_bytes());
  const line_shares shares = *task.work.shares;
  const idx first = shares.first(team), last = shares.first(team + 1);
  if (first >= last) return;
  for (int row = 0; row < shape.rows; row += 8 * Groups)
    attend.run(first, last, task.work.first_item[team], team, warp % shape.heads, row);
}

template <class Task, int DimStep, int Groups>
__global__ void __launch_bounds__(32 * work_shape::most_warps, 1) attend_kernel(const __grid_constant__ Task task) {
  extern __shared__ __align__(128) unsigned char memory[];
  wait_for_earlier_kernels();
  let_next_kernel_start();
  attend_block<Task, DimStep, Groups>(task, memory);
}

inline constexpr int merge_warps = 8;

/// Adds the pieces of the units that several teams had. An item of work is a split unit, one of its KV heads, and eight
/// of its rows, or, where such items are few, one row, whose pieces the warps then share.
template <class Task>
class piece_merger {
 public:
  /// `memory`: [merge_warps][stride] floats, notes included.
  __device__ piece_merger(const Task& task, float* memory, int stride)
      : task_(task), memory_(memory), stride_(stride), lane_(int(threadIdx.x) % 32), warp_(int(threadIdx.x) / 32) {}

  __device__ void run() const {
    const work_shape& shape = task_.work.shape;
    const int splits = task_.work.split[0], of_eight = shape.rows / 8;
    const idx items = idx(splits) * shape.heads * of_eight;
    if (8 * items <= 2 * idx(gridDim.x)) {
      for (idx i = blockIdx.x; i < 8 * items; i += gridDim.x)
        merge(int(i / 8 / of_eight / shape.heads), int(i / 8 / of_eight % shape.heads), int(i % (8 * of_eight)), 1);
    } else {
      for (idx i = blockIdx.x; i < items; i += gridDim.x)
        merge(int(i / of_eight / shape.heads), int(i / of_eight % shape.heads), int(i % of_eight) * 8, 8);
    }
  }

 private:
  /// Rows [first, first + count) of the unit's, count being 1 or 8.
  __device__ void merge(int split, int head_of_team, int first, int count) const {
    const work_plan& work = task_.work;
    const int opener = work.split[1 + split];
    const idx end = work.shares->first(opener + 1);
    const unit_seat seat = seat_at(task_, end - 1, end, work.first_item[opener], head_of_team);
    const int rows = seat.rows_from(first, count);
    if (rows == 0) return;
    const int last = work.shares->owner(end - 1 - seat.step + seat.steps - 1, opener, work.shape.teams());
    const int row = count == 1 ? first : first + warp_;
    const warp_rows x{memory_, stride_};
    if (row < seat.rows) gather(opener, last, head_of_team, row, count == 1 ? merge_warps : 1, x);
    __syncthreads();
    if (warp_ == 0) {
      if (count == 1) add_up(x);
      write_results(task_, task_.items[seat.item], seat.head, seat.first_row + first, rows, x);
    }
    __syncthreads();
  }

  /// The sum of a row's pieces from team `opener`'s to team `last`'s, in this order; of every `every`th.
  __device__ void gather(int opener, int last, int head_of_team, int row, int every, const warp_rows& x) const {
    const int width = task_.v_stride(), all_rows = task_.work.shape.rows;
    constexpr int at_once = 4, most_numbers = 2;  // of four floats a lane
    float4 out[most_numbers] = {};
    float maximum = -1e30f, sum = 0;
    for (int team = opener + (every > 1 ? warp_ : 0); team <= last; team += at_once * every) {
      float maxima[at_once], sums[at_once];
      float4 pieces[at_once][most_numbers];
      float high = maximum;
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int other = team + i * every;
        const bool there = other <= last;
        const float* const piece = task_.piece(there ? other : opener, there && other != opener, head_of_team);
        maxima[i] = there ? __ldcg(piece + idx(all_rows) * width + row) : -1e30f;
        sums[i] = there ? __ldcg(piece + idx(all_rows) * (width + 1) + row) : 0.0f;
#pragma unroll
        for (int k = 0; k < most_numbers; ++k) {
          const int d = 4 * lane_ + 128 * k;
          pieces[i][k] = there && d < width ? __ldcg(reinterpret_cast<const float4*>(piece + idx(row) * width + d))
                                            : float4{0, 0, 0, 0};
        }
        high = fmaxf(high, maxima[i]);
      }
      const float factor = ptx::exp2(maximum - high);
      maximum = high;
      sum *= factor;
#pragma unroll
      for (int k = 0; k < most_numbers; ++k) scale(out[k], factor);
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const float share = ptx::exp2(maxima[i] - high);
        sum += sums[i] * share;
#pragma unroll
        for (int k = 0; k < most_numbers; ++k) add(out[k], pieces[i][k], share);
      }
    }
#pragma unroll
    for (int k = 0; k < most_numbers; ++k) {
      const int d = 4 * lane_ + 128 * k;
      if (d < width) *reinterpret_cast<float4*>(x.row(warp_) + d) = out[k];
    }
    if (lane_ == 0) x.maximum(warp_) = maximum, x.sum(warp_) = sum;
  }

  /// The warps' sums of one row, in their order, as row 0.
  __device__ void add_up(const warp_rows& x) const {
    float high = -1e30f, sum = 0;
    for (int w = 0; w < merge_warps; ++w) high = fmaxf(high, x.maximum(w));
    for (int w = 0; w < merge_warps; ++w) sum += x.sum(w) * ptx::exp2(x.maximum(w) - high);
    for (int d = lane_; d < task_.v_stride(); d += 32) {
      float total = 0;
      for (int w = 0; w < merge_warps; ++w) total += x.row(w)[d] * ptx::exp2(x.maximum(w) - high);
      x.row(0)[d] = total;
    }
    __syncwarp();
    if (lane_ == 0) x.maximum(0) = high, x.sum(0) = sum;
    __syncwarp();
  }

  __device__ static void scale(float4& x, float f) {
    x.x *= f, x.y *= f, x.z *= f, x.w *= f;
  }
  __device__ static void add(float4& x, const float4& y, float f) {
    x.x += y.x * f, x.y += y.y * f, x.z += y.z * f, x.w += y.w * f;
  }

  const Task& task_;
  float* memory_;
  int stride_, lane_, warp_;
};

template <class Task>
__global__ void __launch_bounds__(32 * merge_warps) merge_kernel(const __grid_constant__ Task task) {
  constexpr int stride = longest_device_row + device_row_notes;
  __shared__ __align__(16) float memory[merge_warps * stride];
  wait_for_earlier_kernels();
  let_next_kernel_start();
  piece_merger<Task>(task, memory, stride).run();
}

}  // namespace kvilt::inline KVILT_ABI::detail
