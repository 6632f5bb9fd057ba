#pragma once

#include <kvilt/cache/append.hpp>
#include <kvilt/cache/device_step.hpp>
#include <kvilt/format/lane_encode.cuh>
#include <kvilt/position/lane_rope.cuh>

/// \file
/// What a block of the device's `append` does: rows of K and V from the caller's tensors into the view, rows of Q turned
/// where they lie, and tokens that leave a 16-bit tail.

namespace kvilt::inline KVILT_ABI::detail {

inline constexpr int append_threads = 128;
/// Groups have at least as many lanes, so that a block has at most 32 of them.
inline constexpr int fewest_append_lanes = 4;

KVILT_HD constexpr int append_lanes(int dim) {
  const int lanes = lanes_for(dim);
  return lanes < fewest_append_lanes ? fewest_append_lanes : lanes;
}
template <class View>
KVILT_HD constexpr int append_lanes(const View& view) {
  return append_lanes(View::values_in_keys || view.k_dim() > view.v_dim() ? view.k_dim() : view.v_dim());
}

/// The step's items and the caller's rows of one kind, (row, head) after (row, head).
struct row_source {
  const step_item* items = nullptr;     // [size]
  int size = 0;                         // sequences
  const idx* rope_positions = nullptr;  // or null
  rope turn;
  fast_divisor heads;
  std::uint32_t tasks = 0;  // rows x heads
  int table_rows = 0;       // of sines and cosines, of a block
  int shares = 1;           // 2: half of a block's groups have K and half V, where there is little to do
};

/// A row of the step, and whose it is.
struct found_row {
  step_item item;
  int nth = 0;  // of the item's rows
  bool alive = false;
};

template <bool OfQ>
__device__ inline idx first_row(const step_item& item) {
  return OfQ ? item.q_row : item.kv_row;
}
template <bool OfQ>
__device__ inline bool has_row(const step_item& item, idx row) {
  const idx nth = row - first_row<OfQ>(item);
  return nth >= 0 && nth < (OfQ ? item.queries : item.new_tokens);
}

/// The item that has a row, by all lanes of a warp: where each sequence has one row it is the row's own number; else
/// the last whose rows begin there or before, 32 at a time.
template <bool OfQ>
__device__ inline int find_item(const step_item* items, int size, idx row, int lane) {
  const int guess = row < size ? int(row) : size - 1;
  if (has_row<OfQ>(items[guess], row)) return guess;
  int low = 0, high = size;
  while (high - low > 1) {
    const int step = (high - low + 31) / 32, at = low + lane * step;
    const bool begun = at < high && first_row<OfQ>(items[at]) <= row;
    const int before = __popc(__ballot_sync(0xffffffffu, begun));
    if (before == 0) break;
    low += (before - 1) * step;
    high = low + step < high ? low + step : high;
  }
  return low;
}

/// Finds the rows of a block: found[rows], shared. A warp has each.
template <bool OfQ>
__device__ inline void find_rows(const row_source& from, idx first, int rows, found_row* found) {
  const int lane = int(threadIdx.x) % 32;
  for (int r = int(threadIdx.x) / 32; r < rows; r += append_threads / 32) {
    const step_item item = from.items[find_item<OfQ>(from.items, from.size, first + r, lane)];
    if (lane == 0)
      found[r] = {item, int(first + r - first_row<OfQ>(item)), item.sequence >= 0 && has_row<OfQ>(item, first + r)};
  }
}

/// Where in the text a row is that RoPE turns.
template <bool OfQ>
__device__ inline idx turn_position(const row_source& from, const found_row& found, idx row) {
  if (from.rope_positions) return from.rope_positions[row];
  return OfQ ? found.item.query_position(found.nth) : found.item.n.before + found.nth;
}
template <bool OfQ>
__device__ inline void fill_table(const row_source& from, idx first, int rows, const found_row* found,
                                  const turn_table& table) {
  const int pairs = from.turn.dims / 2;
  for (int i = int(threadIdx.x); i < rows * pairs; i += append_threads) {
    const int r = i / pairs;
    if (found[r].alive) table.set(r, i - r * pairs, from.turn, turn_position<OfQ>(from, found[r], first + r));
  }
}

/// A block's tasks of (row, head), one for each group of lanes.
struct block_tasks {
  idx first_row = 0;
  int rows = 0;
  int row = 0, head = 0;  // this group's; row from first_row on
  bool here = false;
  bool has_k = true, has_v = true;  // alike in all of a warp

  __device__ block_tasks(const row_source& from, std::uint32_t block, const lane_group& g) {
    const int groups = append_threads / g.size / from.shares;
    const std::uint32_t first = block * std::uint32_t(groups);
    const std::uint32_t task = first + threadIdx.x / unsigned(g.size) % unsigned(groups);
    const std::uint32_t last = from.tasks - first < std::uint32_t(groups) ? from.tasks : first + groups;
    first_row = from.heads.quotient(first);
    rows = int(from.heads.quotient(last - 1) - first_row) + 1;
    here = task < last;
    if (from.shares == 2) has_v = threadIdx.x >= append_threads / 2, has_k = !has_v;
    const idx mine = from.heads.quotient(here ? task : first);
    row = int(mine - first_row);
    head = int((here ? task : first) - mine * from.heads.value());
  }
};

/// Copies a segment's row into a group's row of floats, side by side for `encode`.
template <class F>
__device__ void decode_lanes(const F& f, row_ref from, bool alive, const lane_group& g, float* row) {
  for (int n = 8 * g.lane; alive && n < f.dim(); n += 8 * g.size)
    f.template decode<8>(from, n, *reinterpret_cast<float(*)[8]>(row + n));
  g.sync();
}

/// One record from a group's lanes, or none; `row` is room for formats that take a row as it lies.
template <class F>
__device__ void put_record(const F& f, const float (&x)[lane_numbers], bool alive, const lane_group& g, float* row,
                           row_ref to) {
  const int live = alive ? g.live(f.dim()) : 0;
  if constexpr (lanes_encode<F>) {
    lane_encoder<F>::put(x, g, live, to);
  } else {
    g.sync();  // others may still read the row
#pragma unroll
    for (int i = 0; i < lane_numbers; ++i)
      if (i < live) row[g.lane * lane_numbers + i] = x[i];
    g.sync();
    if (g.lane == 0 && alive) f.encode(row, to);
    g.sync();
  }
}

/// Places of one token and head in each segment; no page where it is not to be written.
template <class View>
struct places {
  place at[View::segments];

  __device__ places(const View& view, const found_row& found, int head, bool alive) {
    const step_item& item = found.item;
    int i = 0;
    view.each([&](const auto& seg) {
      place& p = at[i++];
      p.page = -1;
      if constexpr (is_tile<std::remove_cvref_t<decltype(seg)>>) return;
      if (!alive) return;
      const idx slot = seg.retention.slot(item.n, item.sequence, head, item.n.before + found.nth);
      if (slot >= 0) p = seg.layout.locate(item.sequence, head, slot);
    });
  }
};

/// Do lanes hold the view's rows on their way? Others go through shared memory as `encode` takes them.
template <class View>
KVILT_HD constexpr bool rows_in_lanes(const View& view) {
  return lanes_rotate<typename View::k_rotation> && lanes_rotate<typename View::v_rotation> &&
         view.k_dim() <= longest_lane_row && view.v_dim() <= longest_lane_row;
}
/// Must there be room for staged rows also without RoPE?
template <class View>
constexpr bool stages_rows(const View& view) {
  bool all = rows_in_lanes(view);
  view.each([&](const auto& seg) {
    using segment_type = std::remove_cvref_t<decltype(seg)>;
    all = all && lanes_encode<typename segment_type::k_format> &&
          (View::values_in_keys || lanes_encode<typename segment_type::v_format>);
  });
  return !all;
}

/// Writes K and V of one token and head from a group's lanes.
template <class View>
__device__ void put_lanes(const View& view, const places<View>& to, const block_tasks& t,
                          const float (&k)[lane_numbers], [[maybe_unused]] const float (&v)[lane_numbers],
                          const lane_group& g, float* row) {
  int i = 0;
  view.each([&](const auto& seg) {
    const place p = to.at[i++];
    if constexpr (is_tile<std::remove_cvref_t<decltype(seg)>>) return;
    const bool alive = p.page >= 0;
    if (!__any_sync(0xffffffffu, alive)) return;
    if (t.has_k) put_record(seg.k, k, alive, g, row, seg.k_row(p, t.head));
    if constexpr (!View::values_in_keys)
      if (t.has_v) put_record(seg.v, v, alive, g, row, seg.v_row(p, t.head));
  });
}

/// A caller's row into a group's row of floats, side by side.
template <class T>
__device__ void load_lanes(const T* from, int dim, bool wide, bool alive, const lane_group& g, float* row) {
  g.sync();
  for (int n0 = lane_numbers * g.lane; alive && n0 < dim; n0 += lane_numbers * g.size) {
    const int live = dim - n0 < lane_numbers ? dim - n0 : lane_numbers;
    raw_numbers<T> raw;
    raw.load(from + n0, live, wide);
#pragma unroll
    for (int i = 0; i < lane_numbers; ++i)
      if (i < live) row[n0 + i] = raw[i];
  }
  g.sync();
}

/// Writes K, or V, of one token and head from a group's row of floats, side by side: rotated and encoded by one lane.
template <bool OfV, class View>
__device__ void put_staged(const View& view, const places<View>& to, int head, const lane_group& g, float* row) {
  using rotation = std::conditional_t<OfV, typename View::v_rotation, typename View::k_rotation>;
  if (g.lane == 0) {
    rotation::forward(row, OfV ? view.v_dim() : view.k_dim());
    KVILT_FENCE();
    int i = 0;
    view.each([&](const auto& seg) {
      const place p = to.at[i++];
      if constexpr (is_tile<std::remove_cvref_t<decltype(seg)>>) return;
      if (p.page < 0) return;
      if constexpr (OfV)
        seg.v.encode(row, seg.v_row(p, head));
      else
        seg.k.encode(row, seg.k_row(p, head));
    });
  }
  g.sync();
}

}  // namespace kvilt::inline KVILT_ABI::detail
