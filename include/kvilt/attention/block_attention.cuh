#pragma once

#include <kvilt/attention/attend.cuh>

/// \file
/// Attention as a part of a kernel of your own.

namespace kvilt::inline KVILT_ABI {
namespace detail {

/// What a block asks of its warps: shares of one unit, and results that stay in their rows.
template <class View, class Variant, class Positions, class Q>
struct block_task {
  using view_type = View;
  using variant_type = Variant;
  using positions_type = Positions;
  using query_type = Q;
  static constexpr bool writes = false;
  static constexpr bool early = false;
  static constexpr int size = 0;  // items to which a warp goes on from its own

  View view;
  Variant variant;
  Positions positions;
  float scale = 0;
  rows<const Q> q;
  const step_item* items = nullptr;
  work_plan work;
};

}  // namespace detail

/// Attention by one block, inside a kernel of your own, which goes on with the result where it lies, in shared memory.
/// All threads of a block of `threads` threads, in one dimension, make one and call `attend` together; every dim of the
/// view is known when it is compiled. It pays where a step has few and short sequences, or where what follows would read
/// attention's output again: a block reads all keys of a KV head, while `attention` shares long sequences out among all
/// blocks. A kernel that may start while the one before it runs waits for that one first (`griddepcontrol.wait`).
template <device_view View, class Variant, class Q, int Warps = 8, class Positions = text_positions>
class block_attention {
  static_assert(Warps >= 1 && Warps <= 32, "kvilt: a block has 1 to 32 warps");
  static_assert(detail::fixed_dims(static_cast<const View*>(nullptr)),
                "kvilt: attention in a block needs formats whose dims are known when it is compiled");
  static_assert(!std::is_same_v<Positions, rope_on_read>, "kvilt: RoPE on read has no kernel on the GPU");
  static constexpr int most_rows = 8;
  using task_type = detail::block_task<View, Variant, Positions, Q>;
  using warp_type = detail::warp_attention<task_type, 0, 1>;

 public:
  static constexpr int threads = 32 * Warps;

  /// A kernel's parameter, best as `const __grid_constant__`.
  struct arguments {
    task_type task;

    /// q: [s.q_rows][q heads][k_dim] in device memory, RoPE applied. Valid while the step is, and for steps that are begun
    /// with the same workspace and bounds. Throws `invalid_argument`.
    template <class Number>
    static arguments of(const attention<Variant, Positions>& a, const View& view, const device_step& s,
                        rows<Number> q) requires(std::is_same_v<std::remove_const_t<Number>, Q>) {
      if (s.q_rows > 0) detail::check_hooks(a.variant());
      detail::check_queries(view, s, q);
      detail::check_segments(view);
      detail::check_scores(a, view);
      const detail::device_limits limits = detail::device_limits::current();
      detail::work_plan work = s.work;
      work.shape = detail::shape_of_work(view, limits, q.heads, s.most_queries);
      work.shape.rows = most_rows, work.shape.heads = 1, work.shape.warps = Warps;
      detail::expects(sizeof(shared_storage) <= std::size_t(limits.shared_bytes), "a block of ", Warps, " warps needs ",
                      sizeof(shared_storage), " bytes of shared memory; the device has ", limits.shared_bytes);
      const rows<const Q> read{q.data, q.token_stride, q.head_stride, q.heads, q.dim};
      return {{view, a.variant(), a.positions(), a.scale(view.k_dim()), read, s.items, work}};
    }
  };

  /// A block's, in shared memory. Mostly more than 48 KB, so in memory that the kernel is launched with.
  struct alignas(detail::warp_bytes::line) shared_storage {
    unsigned char memory[Warps][warp_type::memory_bytes()];
    detail::team_share shares[Warps];
  };

  /// Attention of some rows: (query, query head of the KV head), the heads of a query side by side. In shared memory.
  struct result {
    int rows = 0;  // at most 8
    detail::warp_rows memory;

    /// [v_dim], on a boundary of 16 bytes. Zeros where a query sees no key.
    __device__ const float* row(int r) const { return memory.row(r); }
    /// The natural log-sum-exp of its scores, a sink's among them; -infinity where there are none.
    __device__ float lse(int r) const { return memory.maximum(r); }
  };

  __device__ block_attention(const arguments& a, shared_storage& storage) : task_(a.task), storage_(storage) {}

  /// Attention of rows [first_row, first_row + 8) of item `item` of the step and of KV head `kv_head`, which are the same
  /// in all threads; of those rows that there are: padding has none. Valid until the next call, and for all threads: they
  /// wait for each other before and after. Bits are the same from run to run, whatever else the step has.
  __device__ result attend(int item, int kv_head, int first_row = 0) {
    const int warp = int(threadIdx.x) / 32;
    const detail::item_rows about = detail::rows_of(task_.items[item]);
    const int rows = int(smaller(most_rows, task_.items[item].queries * task_.work.shape.group.value() - first_row));
    __syncthreads();  // others may still read the result before this one
    if (rows <= 0) return {};
    run({item, kv_head, first_row, rows, 0, 0, task_.work.steps[item]}, warp);
    __syncthreads();
    const detail::warp_rows all = rows_of(0);
    for (int r = warp; r < rows; r += Warps) {
      detail::add_pieces<Warps>([this](int i) { return rows_of(i); }, r, task_.view.v_dim());
      const detail::warp_rows x{all.row(r), all.stride, &all.maximum(r)};
      detail::end_results(task_, about, kv_head, first_row + r, 1, x, [&](const where&, float maximum, float sum) {
        x.maximum(0) = detail::natural_log_sum(maximum, sum);
      });
      const float factor = x.sum(0);
      for (int d = lane(); d < task_.view.v_dim(); d += 32) x.row(0)[d] *= factor;
    }
    __syncthreads();
    return {rows, all};
  }

 private:
  __device__ static int lane() { return int(threadIdx.x) % 32; }
  __device__ detail::warp_rows rows_of(int warp) const { return warp_type::rows_in(storage_.memory[warp]); }

  /// Leaves the warp's share of a unit in its rows.
  __device__ void run(detail::unit_seat seat, int warp) {
    const detail::line_shares shares(seat.steps, Warps);
    seat.step = int(shares.first(warp));
    seat.end = int(shares.first(warp + 1));
    if (seat.step == seat.end) return leave_nothing(warp);
    detail::team_share& share = storage_.shares[warp];
    if (lane() == 0) {
      share.seat = seat;
      share.steps = seat.end - seat.step;
      share.item = task_.items[seat.item];
    }
    __syncwarp();
    warp_type(task_, storage_.memory[warp]).run(share, 0, 0, 0);
  }
  __device__ void leave_nothing(int warp) {
    const detail::warp_rows x = rows_of(warp);
    for (int r = 0; r < most_rows; ++r)
      for (int d = lane(); d < task_.view.v_dim(); d += 32) x.row(r)[d] = 0;
    if (lane() < most_rows) x.maximum(lane()) = -1e30f, x.sum(lane()) = 0;
  }

  const task_type& task_;
  shared_storage& storage_;
};

}  // namespace kvilt::inline KVILT_ABI
