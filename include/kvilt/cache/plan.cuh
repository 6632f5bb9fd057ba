#pragma once

#include <kvilt/cache/check.hpp>
#include <kvilt/cache/device_block.hpp>
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

/// Kernels multiply strides as 32-bit numbers.
inline void check_strides(const char* what, const plane& p) {
  const auto fits = [](idx stride) { return stride >= 0 && stride >> 32 == 0; };
  expects(fits(p.page_stride) && fits(p.head_stride) && fits(p.record_stride), what, " are ", p.page_stride,
          " bytes from page to page, ", p.head_stride, " from head to head and ", p.record_stride,
          " from record to record; attention on the device takes distances from 0 to ", (idx(1) << 32) - 1);
}
template <kv_format F>
void check_strides(const char* which, const F&, const plane& codes, const plane& params) {
  if constexpr (multiplied_as_codes<F>()) check_strides(which, codes);
  if constexpr (params_of_records<F>()) check_strides("scales", params);
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
  expects(view.kv_heads() <= work_shape::most_heads, "a view of ", view.kv_heads(),
          " KV heads; attention on the device ", "takes up to ", work_shape::most_heads);
  view.each([](const auto& seg) {
    check_strides("keys", seg.k, seg.planes.k_codes, seg.planes.k_params);
    check_strides("values", seg.v, seg.planes.v_codes, seg.planes.v_params);
  });
  work_shape shape;
  shape.kv_heads = view.kv_heads();
  shape.group = fast_divisor(q_heads / view.kv_heads());
  const idx rows = idx(most_queries) * shape.group.value();
  shape.rows = rows <= 8 ? 8 : rows <= 16 || view.k_dim() > 128 || view.v_dim() > 128 ? 16 : work_shape::most_rows;
  shape.warps = warp_bytes::of<View>(dim_step(view), shape.rows).warps;
  // NOTE: without values more of a tile's keys may be on their way at once.
  const int need = int(
      larger(warp_budget<View>(dim_step(view), shape.rows), warp_budget<keys_view<View>>(dim_step(view), shape.rows)));
  while (shape.warps > 1 && shape.warps * need > limits.shared_bytes) shape.warps /= 2;
  expects(shape.warps * need <= limits.shared_bytes, "a warp needs ", need, " bytes of shared memory; the device has ",
          limits.shared_bytes);
  shape.heads = team_heads(shape.kv_heads, shape.warps);
  shape.blocks = limits.processors;
  if constexpr (taken_by_blocks<View>()) {
    // NOTE: a block reads all keys of its rows. An item is left to blocks where they are enough to keep a quarter of the
    // multiprocessors busy; one of fewer rows is done sooner by teams that read keys several times.
    constexpr int least_blocks_of = 4;
    const block_bytes bytes = block_bytes::of<View>(dim_step(view));
    const idx blocks = larger(1, ceil_div(idx(limits.processors), idx(least_blocks_of) * shape.kv_heads));
    if (bytes.total() <= limits.shared_bytes) shape.longest = int(bytes.rows() * blocks) / shape.group.value();
  }
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
  idx items = 0, line = 0, steps = 0, teams = 0, splits = 0, split = 0, taken = 0, pieces = 0, end = 0;

  step_places(idx size, const work_shape& shape, int v_dim) {
    const auto take = [&](idx bytes) { return std::exchange(end, end + round_up(bytes, 256)); };
    items = take(size * idx(sizeof(step_item)));
    line = take((size + 1) * idx(sizeof(idx)));
    steps = take(size * idx(sizeof(int)));
    teams = take(shape.teams() * idx(sizeof(team_share)));
    splits = take(idx(sizeof(int)));
    split = take(shape.teams() * idx(sizeof(split_unit)));
    taken = take(2 * idx(sizeof(unsigned long long)));
    pieces = take(pieces_bytes(shape, v_dim));
  }

  work_plan plan(unsigned char* base, const work_shape& shape) const {
    work_plan p;
    p.shape = shape;
    p.line = reinterpret_cast<const idx*>(base + line);
    p.steps = reinterpret_cast<const int*>(base + steps);
    p.teams = reinterpret_cast<const team_share*>(base + teams);
    p.splits = reinterpret_cast<const int*>(base + splits);
    p.split = reinterpret_cast<const split_unit*>(base + split);
    p.taken = reinterpret_cast<unsigned long long*>(base + taken);
    return p;
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
  s.work = at.plan(base, shape);
  s.scratch = base + at.pieces;
  s.scratch_bytes = workspace.size() - skip - std::size_t(at.pieces);
  return s;
}

inline constexpr int plan_threads = 512;  // at most
inline int plan_threads_for(int size, const work_shape& shape) {
  const idx needed = round_up(larger(size, shape.teams()), 32);
  return int(smaller(needed, plan_threads));
}

/// Exclusive sums of `N` numbers over the block's threads; `total` is everyone's.
template <int N>
__device__ void sums_before(const idx (&mine)[N], idx (&before)[N], idx (&total)[N]) {
  __shared__ idx of_warps[plan_threads / 32][N];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, warps = int(blockDim.x) / 32;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    idx sum = mine[n];
    for (int step = 1; step < 32; step *= 2) {
      const idx other = __shfl_up_sync(0xffffffffu, sum, unsigned(step));
      if (lane >= step) sum += other;
    }
    if (lane == 31) of_warps[warp][n] = sum;
    before[n] = sum - mine[n];
    total[n] = 0;
  }
  __syncthreads();
  for (int i = 0; i < warps; ++i)
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (i < warp) before[n] += of_warps[i][n];
      total[n] += of_warps[i][n];
    }
  __syncthreads();
}

/// A line that is looked at again and again, near at hand.
struct near_line {
  static constexpr int most = 2048;  // sequences; a longer one is looked at in memory
  idx line[most + 1];
  int steps[most];

  __device__ work_plan of(const work_plan& plan, int size) const {
    work_plan p = plan;
    if (size <= most) p.line = line, p.steps = steps;
    return p;
  }
};

/// Puts a step's units on the line: how long it is. `item_of(i)`: an item; `place(i, item, kv_row, q_row)` is told where
/// its rows begin.
template <class View, class ItemOf, class Place>
__device__ idx lay_line(const View& view, int size, const work_plan& plan, near_line& near, ItemOf item_of,
                        Place place) {
  idx* const line = const_cast<idx*>(plan.line);
  int* const steps = const_cast<int*>(plan.steps);
  idx kv_rows = 0, q_rows = 0, end = 0;
  for (int first = 0; first < size; first += int(blockDim.x)) {
    const int i = first + int(threadIdx.x);
    idx mine[3] = {}, before[3], total[3];
    step_item item;
    if (i < size) {
      item = item_of(i);
      int all = 0;
      if (item.queries > 0)
        view.each([&](const auto& seg) { all += segment_steps(seg, item.n, item.sequence, plan.shape.kv_heads); });
      // NOTE: a unit without keys has a step that reads nothing, so that someone writes its result.
      steps[i] = all > 0 ? all : 1;
      if (i < near.most) near.steps[i] = steps[i];
      mine[0] = item.new_tokens, mine[1] = item.queries;
      mine[2] = plan.shape.has(item.queries) ? steps[i] * plan.shape.units(item.queries) : 0;
    }
    sums_before(mine, before, total);
    if (i < size) {
      place(i, item, kv_rows + before[0], q_rows + before[1]);
      line[i] = end + before[2];
      if (i < near.most) near.line[i] = line[i];
    }
    kv_rows += total[0], q_rows += total[1], end += total[2];
  }
  if (threadIdx.x == 0) {
    line[size] = end;
    if (size <= near.most) near.line[size] = end;
  }
  __syncthreads();
  return end;
}

/// Reads or writes what lies on a boundary of 16 bytes, 16 at once: threads that each have their own meet many lines of
/// memory with every instruction.
template <class T>
__device__ T load_wide(const T& from) {
  static_assert(sizeof(T) % sizeof(uint4) == 0);
  uint4 words[sizeof(T) / sizeof(uint4)];
  for (std::size_t i = 0; i < sizeof(T) / sizeof(uint4); ++i) words[i] = reinterpret_cast<const uint4*>(&from)[i];
  T t;
  __builtin_memcpy(&t, words, sizeof(T));
  return t;
}
template <class T>
__device__ void store_wide(T& to, const T& t) {
  static_assert(sizeof(T) % sizeof(uint4) == 0);
  uint4 words[sizeof(T) / sizeof(uint4)];
  __builtin_memcpy(words, &t, sizeof(T));
  for (std::size_t i = 0; i < sizeof(T) / sizeof(uint4); ++i) reinterpret_cast<uint4*>(&to)[i] = words[i];
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
  const idx at = shares.first(team), end = shares.first(team + 1);
  team_share share;
  share.steps = int(end - at);
  bool opens = false;
  if (at < end) {
    share.seat = seat_at(plan, items, at, end, item_at(plan.line, size, at));
    share.item = load_wide(items[share.seat.item]);
    const idx last = end - 1;
    const unit_seat seat = seat_at(plan, items, last, end, item_at(plan.line, size, last));
    const idx begin = last - seat.step;
    opens = begin >= at && begin + seat.steps > end;
    if (opens) split = {team, shares.owner(begin + seat.steps - 1, team, plan.shape.teams()), seat};
  }
  store_wide(const_cast<team_share*>(plan.teams)[team], share);
  return opens;
}

/// Puts a step's units on the line, as `lay_line`, and shares it out. One block.
template <class View, class ItemOf, class Place>
__device__ void share_line(const View& view, const step_item* items, int size, const work_plan& plan, ItemOf item_of,
                           Place place) {
  __shared__ near_line near;
  const int teams = plan.shape.teams();
  const line_shares shares(lay_line(view, size, plan, near, item_of, place), teams);
  const work_plan looked_at = near.of(plan, size);
  idx before = 0;
  for (int first = 0; first < teams; first += int(blockDim.x)) {
    const int team = first + int(threadIdx.x);
    split_unit split;
    const bool opens = team < teams && take_share(looked_at, items, size, shares, team, split);
    const idx mine[1] = {opens ? 1 : 0};
    idx at[1], total[1];
    sums_before(mine, at, total);
    if (opens) const_cast<split_unit*>(plan.split)[before + at[0]] = split;
    before += total[0];
  }
  if (threadIdx.x == 0) {
    *const_cast<int*>(plan.splits) = int(before);
    plan.taken[0] = plan.taken[1] = 0;
    if (before == 0) *const_cast<split_unit*>(plan.split) = {};  // looked at with their number
  }
}

template <class View>
__global__ void __launch_bounds__(plan_threads)
    share_line_kernel(const __grid_constant__ View view, const step_item* items, int size, work_plan plan) {
  share_line(
      view, items, size, plan, [&](int i) { return items[i]; }, [](int, const step_item&, idx, idx) {});
}

/// Plans attention's work from items that lie in device memory.
template <device_view View>
void share_work(const gpu& exec, const View& view, const device_step& s) {
  launch(exec, share_line_kernel<View>, dim3(1), dim3(unsigned(plan_threads_for(s.size, s.work.shape))), 0, false, view,
         s.items, s.size, s.work);
}

/// Items of an engine's batch, and their rows one after another.
template <class View>
__global__ void __launch_bounds__(plan_threads)
    plan_kernel(const __grid_constant__ View view, const device_batch batch, step_item* items, work_plan plan) {
  const auto item_of = [&](int i) {
    step_item item;
    item.sequence = batch.sequences[i];
    const bool padding = item.sequence < 0;
    item.new_tokens = padding ? 0 : batch.new_tokens[i];
    item.queries = padding ? 0 : batch.queries ? batch.queries[i] : item.new_tokens;
    const idx before = padding ? 0 : batch.length_before[i];
    item.n = {before, before + item.new_tokens, before, before + item.new_tokens};
    return item;
  };
  const auto place = [&](int i, step_item item, idx kv_row, idx q_row) {
    item.kv_row = kv_row, item.q_row = q_row;
    store_wide(items[i], item);
  };
  share_line(view, items, batch.size, plan, item_of, place);
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
  detail::launch(exec, detail::plan_kernel<View>, dim3(1),
                 dim3(unsigned(detail::plan_threads_for(b.size, s.work.shape))), 0, false, view, b, items, s.work);
  return s;
}

}  // namespace kvilt::inline KVILT_ABI
