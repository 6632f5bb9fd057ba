#pragma once

#include <kvilt/attention/positions.hpp>
#include <kvilt/attention/variant.hpp>
#include <kvilt/cache/device_step.hpp>
#include <kvilt/cache/device_tile.hpp>
#include <kvilt/cache/work_line.cuh>
#include <kvilt/gpu/ptx.cuh>

namespace kvilt::inline KVILT_ABI::detail {

/// One call of attention, as its kernels get it.
template <class View, class Variant, class Positions, class Q, class Out>
struct device_attention {
  using view_type = View;
  using variant_type = Variant;
  using positions_type = Positions;
  using query_type = Q;
  using out_type = Out;
  static constexpr bool writes = true;  // results; else a warp's stay in its rows

  View view;
  Variant variant;
  Positions positions;
  float scale = 0;
  rows<const Q> q;
  rows<Out> out;
  natural_lse lse;
  const step_item* items = nullptr;
  int size = 0, most_queries = 0;
  work_plan work;
  float* pieces = nullptr;
  bool early = false;  // keys may be read while the kernel before this one is at work

  __device__ int v_stride() const { return (view.v_dim() + 3) / 4 * 4; }
  /// The partial results that a team leaves of one KV head: [rows][v_stride], then maxima and sums [rows] each.
  __device__ float* piece(int team, bool of_unit_before, int head) const {
    const work_shape& shape = work.shape;
    const idx floats = idx(shape.rows) * (v_stride() + 2);
    return pieces + ((2 * idx(team) + (of_unit_before ? 0 : 1)) * shape.heads + head) * floats;
  }
};

/// `body(segment)` for the segment number `which`.
template <class View, class Body>
__device__ void visit_segment(const View& view, int which, Body&& body) {
  if constexpr (View::segments == 1) {
    body(view.first());
  } else {
    int i = 0;
    view.each([&](const auto& seg) {
      if (i++ == which) body(seg);
    });
  }
}

/// Can eight numbers of a row be read or written at once, wherever they are?
template <class T>
__device__ bool in_eights(const rows<T>& x) {
  constexpr int bytes = sizeof(T) < 4 ? 8 * sizeof(T) : 16;
  return (reinterpret_cast<std::uintptr_t>(x.data) | std::uintptr_t(x.token_stride * idx(sizeof(T))) |
          std::uintptr_t(x.head_stride * idx(sizeof(T)))) %
             bytes ==
         0;
}

/// What an item is to its query rows.
struct item_rows {
  int sequence = 0;
  int first_position = 0;  // of its first query
  idx q_row = 0;
};
__device__ inline item_rows rows_of(const step_item& item) {
  return {item.sequence, int(item.query_position(0)), item.q_row};
}

/// What hooks are told about row `row` of a sequence.
template <class Task>
__device__ where where_of(const Task& task, const item_rows& item, int kv_head, int row) {
  const fast_divisor& group = task.work.shape.group;
  const int query = int(group.quotient(row));
  return {item.sequence,
          kv_head * group.value() + row - query * group.value(),
          kv_head,
          query,
          item.first_position + query,
          0};
}
/// Its numbers.
template <class Task>
__device__ auto* query_of(const Task& task, const item_rows& item, int kv_head, int row) {
  const where w = where_of(task, item, kv_head, row);
  return task.q.at(item.q_row + w.q_index, w.q_head);
}

/// [first, last), of what is counted in 32 bits.
struct int_range {
  int first = 0, last = 0;
};

/// Positions that any of `rows` rows may see, the same in all lanes. At most 32 rows.
template <class Task>
__device__ int_range seen_by_rows(const Task& task, const item_rows& item, int kv_head, int first_row, int rows) {
  constexpr int end = 0x7fffffff;
  constexpr bool narrows = requires(where w) {
    task.variant.tiles(w);
  };
  int_range seen{0, end};
  if constexpr (narrows) {
    const int lane = int(threadIdx.x) % 32;
    seen = {end, 0};
    if (lane < rows) {
      const position_range mine = tiles_of(task.variant, where_of(task, item, kv_head, first_row + lane));
      seen = {int(smaller(larger(mine.first, 0), end)), int(smaller(larger(mine.last, 0), end))};
    }
    seen = {__reduce_min_sync(0xffffffffu, seen.first), __reduce_max_sync(0xffffffffu, seen.last)};
  }
  return seen;
}

}  // namespace kvilt::inline KVILT_ABI::detail
