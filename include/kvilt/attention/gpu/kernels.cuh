#pragma once

#include <kvilt/attention/gpu/prefill.cuh>
#include <kvilt/attention/gpu/prefill_groups.cuh>
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
  const team_share& share = task.work.teams[team];
  if (share.steps == 0) {
    bool waited = !task.early;
    return end_early_reads(waited);  // so that this kernel does not end before those before it
  }
  for (int row = 0; row < shape.rows; row += 8 * Groups) attend.run(share, team, warp % shape.heads, row);
}

template <class Task, int DimStep, int Groups>
__global__ void __launch_bounds__(32 * warp_bytes::of<typename Task::view_type>(DimStep, 8 * Groups).warps, 1)
    attend_kernel(const __grid_constant__ Task task) {
  extern __shared__ __align__(128) unsigned char memory[];
  if (!task.early) wait_for_earlier_kernels(), let_next_kernel_start();
  attend_block<Task, DimStep, Groups>(task, memory);
}

/// Are a view's prompts the affair of warpgroups, in the code that is being compiled? Whether they are in a kernel that is
/// to be launched, its attributes say: it takes as many threads as they are.
template <class View, int DimStep>
consteval bool compiled_for_groups() {
  return KVILT_WARPGROUPS && taken_by_groups<View, DimStep>();
}
template <class View, int DimStep>
consteval int prefill_threads() {
  return compiled_for_groups<View, DimStep>() ? group_bytes::threads : block_bytes::threads;
}

/// A block for each stretch of rows, the last first: in causal attention they see most. Warpgroups take stretches one after
/// the other.
template <class Task, int DimStep>
__global__ void __launch_bounds__((prefill_threads<typename Task::view_type, DimStep>()),
                                  compiled_for_groups<typename Task::view_type, DimStep>() ? 1 : 2)
    prefill_kernel(const __grid_constant__ Task task,
                   [[maybe_unused]] const __grid_constant__ box_maps<Task::view_type::segments> maps) {
  extern __shared__ __align__(1024) unsigned char block_memory[];
  wait_for_earlier_kernels();
  let_next_kernel_start();
  if constexpr (compiled_for_groups<typename Task::view_type, DimStep>()) {
    attend_by_groups<Task, DimStep>(task, maps, block_memory);
  } else {
    const int first = int(gridDim.x - 1 - blockIdx.x) * block_bytes::of<typename Task::view_type>(DimStep).rows();
    for (int i = int(blockIdx.z); i < task.size; i += int(gridDim.z)) {
      const step_item item = task.items[i];
      if (task.work.shape.has(item.queries) || first >= item.queries * task.work.shape.group.value()) continue;
      block_of_rows<Task, DimStep>(task, block_memory).run(item, int(blockIdx.y), first);
      __syncthreads();
    }
  }
}

inline constexpr int merge_warps = 16;

/// The numbers of a view's values, or the most that there may be.
template <memory_space Space, class First, class... Rest>
consteval int most_v_dim(const view<Space, First, Rest...>*) {
  return padded_dim<typename First::v_format>(longest_device_row);
}

/// Adds the pieces of the units that several teams had, row by row. Where rows are few, a block's warps share a row's
/// pieces; else each has rows of its own.
template <class Task>
class piece_merger {
 public:
  static constexpr int stride = longest_device_row + 4;  // a row and its notes
  /// Of four floats a lane.
  static constexpr int most_numbers = most_v_dim(static_cast<const typename Task::view_type*>(nullptr)) <= 128 ? 1 : 2;

  /// `memory`: [merge_warps][stride] floats.
  __device__ piece_merger(const Task& task, float* memory)
      : task_(task), memory_(memory), lane_(int(threadIdx.x) % 32), warp_(int(threadIdx.x) / 32) {}

  __device__ void run() const {
    const work_shape& shape = task_.work.shape;
    const split_unit opening = task_.work.split[0];  // on its way with their number: where one unit is split it is all
    const idx rows = idx(*task_.work.splits) * shape.heads * shape.rows;
    if (rows <= 2 * idx(gridDim.x)) {
      for (idx i = blockIdx.x; i < rows; i += gridDim.x) {
        const found f = find(i, opening);
        if (f.row < f.split.seat.rows) gather(f, warp_, merge_warps);
        __syncthreads();
        if (warp_ == 0 && f.row < f.split.seat.rows) {
          add_pieces<merge_warps>([this](int warp) { return mine(warp); }, 0, task_.v_stride());
          write(f);
        }
        __syncthreads();
      }
    } else {
      for (idx i = blockIdx.x * idx(merge_warps) + warp_; i < rows; i += gridDim.x * idx(merge_warps)) {
        const found f = find(i, opening);
        if (f.row >= f.split.seat.rows) continue;
        gather(f, 0, 1);
        write(f);
      }
    }
  }

 private:
  /// A row of a split unit and of one of its KV heads.
  struct found {
    split_unit split;
    int head, row;
  };
  __device__ found find(idx i, const split_unit& opening) const {
    const work_shape& shape = task_.work.shape;
    const int of_unit = shape.heads * shape.rows, split = int(i / of_unit), in_unit = int(i - idx(split) * of_unit);
    return {split == 0 ? opening : task_.work.split[split], in_unit / shape.rows, in_unit % shape.rows};
  }
  __device__ warp_rows mine(int warp) const {
    return {memory_ + warp * stride, stride, memory_ + warp * stride + longest_device_row};
  }
  __device__ void write(const found& f) const {
    const unit_seat& seat = f.split.seat;
    write_results(task_, rows_of(task_.items[seat.item]), seat.head + f.head, seat.first_row + f.row, 1, mine(warp_));
  }

  /// The sum of pieces number `first`, `first + every`, ... in the order of teams.
  __device__ void gather(const found& f, int first, int every) const {
    const int width = task_.v_stride(), all_rows = task_.work.shape.rows, row = f.row;
    constexpr int at_once = most_numbers == 1 ? 12 : 6;
    float4 out[most_numbers] = {};
    float maximum = -1e30f, sum = 0;
    for (int team = f.split.opener + first; team <= f.split.last; team += at_once * every) {
      float maxima[at_once], sums[at_once], high = maximum;
      float4 pieces[at_once][most_numbers];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int other = team + i * every;
        const bool there = other <= f.split.last;
        const float* const piece = task_.piece(there ? other : team, (there ? other : team) != f.split.opener, f.head);
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
    const warp_rows x = mine(warp_);
#pragma unroll
    for (int k = 0; k < most_numbers; ++k) {
      const int d = 4 * lane_ + 128 * k;
      if (d < width) *reinterpret_cast<float4*>(x.row(0) + d) = out[k];
    }
    if (lane_ == 0) x.maximum(0) = maximum, x.sum(0) = sum;
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
  int lane_, warp_;
};

template <class Task>
__global__ void __launch_bounds__(32 * merge_warps) merge_kernel(const __grid_constant__ Task task) {
  __shared__ __align__(16) float memory[merge_warps * piece_merger<Task>::stride];
  wait_for_earlier_kernels();
  let_next_kernel_start();
  piece_merger<Task>(task, memory).run();
}

}  // namespace kvilt::inline KVILT_ABI::detail
