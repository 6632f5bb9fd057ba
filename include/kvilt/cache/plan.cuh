#pragma once

#include <kvilt/cache/check.hpp>
#include <kvilt/cache/device_step.hpp>
#include <kvilt/cache/device_tile.hpp>
#include <kvilt/cache/work_line.cuh>
#include <kvilt/gpu/gpu.cuh>

#include <span>
#include <utility>

namespace kvilt::inline KVILT_ABI {
namespace detail {

/// KV heads of a team: the largest power of two that divides them and the warps of a block.
constexpr int team_heads(int kv_heads, int warps) {
  const int heads = power_of_two_divisor(kv_heads), most = power_of_two_divisor(warps);
  return heads < most ? heads : most;
}

/// Throws `invalid_argument` for what no kernel takes.
template <kv_view View>
work_shape shape_of_work(const View& view, const device_limits& limits, int q_heads, int most_queries) {
  expects(view.kv_heads() >= 1, "a view of ", view.kv_heads(), " KV heads; at least 1 is needed");
  expects(q_heads >= 1 && q_heads % view.kv_heads() == 0, "a step is planned for ", q_heads,
          " query heads; a multiple of the cache's ", view.kv_heads(), " is needed");
  expects(most_queries >= 0, "a step of ", most_queries, " queries a sequence; that may not be negative");
  expects(view.k_dim() <= longest_device_row && view.v_dim() <= longest_device_row, "rows have ", view.k_dim(), " and ",
          view.v_dim(), " numbers; attention on the device takes up to ", longest_device_row);
  work_shape shape;
  shape.kv_heads = view.kv_heads();
  shape.group = q_heads / view.kv_heads();
  const idx rows = idx(most_queries) * shape.group;
  shape.rows = rows <= 8 ? 8 : rows <= 16 || view.k_dim() > 128 || view.v_dim() > 128 ? 16 : work_shape::most_rows;
  shape.warps = block_warps<View>(dim_step(view), shape.rows);
  const int need = warp_budget<View>(dim_step(view), shape.rows);
  while (shape.warps > 1 && shape.warps * need > limits.shared_bytes) shape.warps /= 2;
  expects(shape.warps * need <= limits.shared_bytes, "a warp needs ", need, " bytes of shared memory; the device has ",
          limits.shared_bytes);
  shape.heads = team_heads(shape.kv_heads, shape.warps);
  shape.blocks = limits.processors;
  return shape;
}

/// Bytes of one partial result: outputs, maxima and sums of a unit's rows, of one KV head.
inline idx piece_bytes(const work_shape& shape, int v_dim) {
  return idx(sizeof(float)) * shape.rows * (round_up(v_dim, 4) + 2);
}
/// A team leaves at most two: of the unit that it goes on with, and of the one that it does not end.
inline idx pieces_bytes(const work_shape& shape, int v_dim) {
  return 2 * idx(shape.teams()) * shape.heads * piece_bytes(shape, v_dim);
}

/// Where a device step's parts lie in its workspace.
struct step_places {
  idx items = 0, line = 0, steps = 0, teams = 0, splits = 0, split = 0, pieces = 0, end = 0;

  step_places(idx size, const work_shape& shape, int v_dim) {
    const auto take = [&](idx bytes) { return std::exchange(end, end + round_up(bytes, 256)); };
    items = take(size * idx(sizeof(step_item)));
    line = take((size + 1) * idx(sizeof(idx)));
    steps = take(size * idx(sizeof(int)));
    teams = take(shape.teams() * idx(sizeof(team_share)));
    splits = take(idx(sizeof(int)));
    split = take(shape.teams() * idx(sizeof(split_unit)));
    pieces = take(pieces_bytes(shape, v_dim));
  }
};

/// Lays a step out in a workspace in device memory. `items` is where its items are to be written.
template <kv_view View>
device_step place_device_step(const View& view, int size, int q_heads, int most_queries,
                              std::span<unsigned char> workspace, step_item*& items) {
  const work_shape shape = shape_of_work(view, device_limits::current(), q_heads, most_queries);
  const step_places at(size, shape, view.v_dim());
  check_memory(workspace.data(), idx(workspace.size()), "a workspace of ", workspace.size(), " bytes");
  const std::size_t skip = (256 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 256) % 256;
  expects(workspace.size() >= skip + std::size_t(at.end), "a workspace of ", workspace.size(), " bytes; a step of ",
          size, " sequences needs ", std::size_t(at.end) + skip, ": see workspace_bytes");
  unsigned char* const base = workspace.data() + skip;
  items = reinterpret_cast<step_item*>(base + at.items);
  device_step s;
  s.items = items;
  s.size = size;
  s.most_queries = most_queries;
  s.q_heads = q_heads;
  s.work.shape = shape;
  s.work.line = reinterpret_cast<const idx*>(base + at.line);
  s.work.steps = reinterpret_cast<const int*>(base + at.steps);
  s.work.teams = reinterpret_cast<const team_share*>(base + at.teams);
  s.work.splits = reinterpret_cast<const int*>(base + at.splits);
  s.work.split = reinterpret_cast<const split_unit*>(base + at.split);
  s.scratch = base + at.pieces;
  s.scratch_bytes = workspace.size() - skip - std::size_t(at.pieces);
  return s;
}

inline constexpr int plan_threads = 1024;

/// Exclusive sums over the block's threads; `total` is everyone's.
__device__ inline idx sums_before(idx mine, idx& total) {
  __shared__ idx of_warps[plan_threads / 32];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  idx sum = mine;
  for (int step = 1; step < 32; step *= 2) {
    const idx other = __shfl_up_sync(0xffffffffu, sum, unsigned(step));
    if (lane >= step) sum += other;
  }
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  idx before = 0;
  total = 0;
  for (int i = 0; i < plan_threads / 32; ++i) {
    if (i < warp) before += of_warps[i];
    total += of_warps[i];
  }
  __syncthreads();
  return before + sum - mine;
}

/// Puts a step's units on the line: how long it is.
template <class View>
__device__ idx lay_line(const View& view, const step_item* items, int size, const work_plan& plan) {
  idx* const line = const_cast<idx*>(plan.line);
  int* const steps = const_cast<int*>(plan.steps);
  idx before = 0;
  for (int first = 0; first < size; first += plan_threads) {
    const int i = first + int(threadIdx.x);
    idx mine = 0;
    if (i < size) {
      const step_item item = items[i];
      int all = 0;
      if (item.queries > 0)
        view.each([&](const auto& seg) { all += segment_steps(seg, item.n, item.sequence, plan.shape.kv_heads); });
      // NOTE: a unit without keys has a step that reads nothing, so that someone writes its result.
      steps[i] = all > 0 ? all : 1;
      mine = steps[i] * plan.shape.units(item.queries);
    }
    idx total = 0;
    const idx at = before + sums_before(mine, total);
    if (i < size) line[i] = at;
    before += total;
  }
  if (threadIdx.x == 0) line[size] = before;
  __syncthreads();
  return before;
}

/// The item to which a position of the line belongs.
__device__ inline int item_at(const idx* line, int size, idx at) {
  int low = 0, high = size;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (line[middle] <= at ? low : high) = middle;
  }
  return low;
}

/// A team's share. Where its last unit goes on with the next team and did not begin with one before, that is `split`.
__device__ inline bool take_share(const work_plan& plan, const step_item* items, int size, const line_shares& shares,
                                  int team, split_unit& split) {
  team_share share;
  share.at = shares.first(team);
  share.end = shares.first(team + 1);
  bool opens = false;
  if (share.at < share.end) {
    share.seat = seat_at(plan, items, share.at, share.end, item_at(plan.line, size, share.at));
    const idx last = share.end - 1;
    const unit_seat seat = seat_at(plan, items, last, share.end, item_at(plan.line, size, last));
    const idx begin = last - seat.step;
    opens = begin >= share.at && begin + seat.steps > share.end;
    if (opens) split = {team, shares.owner(begin + seat.steps - 1, team, plan.shape.teams()), seat};
  }
  const_cast<team_share*>(plan.teams)[team] = share;
  return opens;
}

/// Puts a step's units on the line and shares it out. One block.
template <class View>
__device__ void share_line(const View& view, const step_item* items, int size, const work_plan& plan) {
  const int teams = plan.shape.teams();
  const line_shares shares(lay_line(view, items, size, plan), teams);
  idx before = 0;
  for (int first = 0; first < teams; first += plan_threads) {
    const int team = first + int(threadIdx.x);
    split_unit split;
    const bool opens = team < teams && take_share(plan, items, size, shares, team, split);
    idx total = 0;
    const idx at = before + sums_before(opens ? 1 : 0, total);
    if (opens) const_cast<split_unit*>(plan.split)[at] = split;
    before += total;
  }
  if (threadIdx.x == 0) {
    *const_cast<int*>(plan.splits) = int(before);
    if (before == 0) *const_cast<split_unit*>(plan.split) = {};  // looked at with their number
  }
}

template <class View>
__global__ void __launch_bounds__(plan_threads)
    share_line_kernel(const __grid_constant__ View view, const step_item* items, int size, work_plan plan) {
  share_line(view, items, size, plan);
}

/// Plans attention's work from items that lie in device memory.
template <device_view View>
void share_work(const gpu& exec, const View& view, const device_step& s) {
  launch(exec, share_line_kernel<View>, dim3(1), dim3(plan_threads), 0, false, view, s.items, s.size, s.work);
}

/// Items of an engine's batch, and their rows one after another.
template <class View>
__global__ void __launch_bounds__(plan_threads)
    plan_kernel(const __grid_constant__ View view, const device_batch batch, step_item* items, work_plan plan) {
  idx kv_rows = 0, q_rows = 0;
  for (int first = 0; first < batch.size; first += plan_threads) {
    const int i = first + int(threadIdx.x);
    step_item item;
    if (i < batch.size) {
      item.sequence = batch.sequences[i];
      const bool padding = item.sequence < 0;
      item.new_tokens = padding ? 0 : batch.new_tokens[i];
      item.queries = padding ? 0 : batch.queries ? batch.queries[i] : item.new_tokens;
      const idx before = padding ? 0 : batch.length_before[i];
      item.n = {before, before + item.new_tokens, before, before + item.new_tokens};
    }
    idx kv_total = 0, q_total = 0;
    item.kv_row = kv_rows + sums_before(item.new_tokens, kv_total);
    item.q_row = q_rows + sums_before(item.queries, q_total);
    kv_rows += kv_total;
    q_rows += q_total;
    if (i < batch.size) items[i] = item;
  }
  __syncthreads();
  share_line(view, items, batch.size, plan);
}

inline void check_batch(const device_batch& b) {
  expects(b.size >= 0, "a batch of ", b.size, " sequences; that may not be negative");
  expects(b.most_new_tokens >= 0 && b.most_queries >= 0 && b.kv_rows >= 0 && b.q_rows >= 0, "a batch of at most ",
          b.most_new_tokens, " new tokens and ", b.most_queries, " queries a sequence, ", b.kv_rows, " and ", b.q_rows,
          " in all; none may be negative");
  check_memory(b.sequences, b.size, "the list of a batch's ", b.size, " sequences");
  check_memory(b.length_before, b.size, "the list of a batch's ", b.size, " lengths");
  check_memory(b.new_tokens, b.size, "the list of a batch's ", b.size, " token counts");
}

}  // namespace detail

/// Bytes of workspace, in device memory, for steps on the current device of up to `sequences` sequences and `most_queries`
/// queries of each. Throws `invalid_argument` for what no kernel takes.
template <device_view View>
std::size_t workspace_bytes(const gpu&, const View& view, int sequences, int q_heads, int most_queries = 1) {
  detail::expects(sequences >= 0, "a workspace for steps of ", sequences, " sequences; that may not be negative");
  const detail::work_shape shape = detail::shape_of_work(view, detail::device_limits::current(), q_heads, most_queries);
  return 256 + std::size_t(detail::step_places(sequences, shape, view.v_dim()).end);
}

/// Plans a step over an engine's own memory, without a 16-bit tail: one kernel, no word of it waited for, so it may be
/// part of a captured graph. What the arrays say is the engine's affair; numbers beyond the bounds given here are not
/// looked for. Throws `invalid_argument` before anything is launched.
template <device_view View>
device_step plan(const gpu& exec, const View& view, const device_batch& b, std::span<unsigned char> workspace) {
  detail::check_batch(b);
  detail::check_view(view);
  view.each([&](const auto& seg) {
    if constexpr (requires { seg.retention.slides; })
      detail::expects(!seg.retention.slides || b.most_queries <= b.most_new_tokens, "a batch of at most ",
                      b.most_queries, " queries and ", b.most_new_tokens,
                      " new tokens a sequence; over a window no query may be older than these");
  });
  step_item* items = nullptr;
  device_step s = detail::place_device_step(view, b.size, b.q_heads, b.most_queries, workspace, items);
  s.kv_rows = b.kv_rows ? b.kv_rows : idx(b.size) * b.most_new_tokens;
  s.q_rows = b.q_rows ? b.q_rows : idx(b.size) * b.most_queries;
  s.most_new_tokens = b.most_new_tokens;
  s.rope_positions = b.rope_positions;
  detail::launch(exec, detail::plan_kernel<View>, dim3(1), dim3(detail::plan_threads), 0, false, view, b, items,
                 s.work);
  return s;
}

}  // namespace kvilt::inline KVILT_ABI
