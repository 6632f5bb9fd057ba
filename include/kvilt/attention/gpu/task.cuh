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

  View view;
  Variant variant;
  Positions positions;
  float scale = 0;
  rows<const Q> q;
  rows<Out> out;
  natural_lse lse;
  const step_item* items = nullptr;
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

/// What hooks are told about row `row` of a sequence.
template <class Task>
__device__ where where_of(const Task& task, const step_item& item, int kv_head, int row) {
  const int group = task.work.shape.group, query = row / group;
  return {item.sequence, kv_head * group + row - query * group, kv_head, query, item.query_position(query), 0};
}

/// Positions that any of `rows` rows may see, the same in all lanes. At most 32 rows.
template <class Task>
__device__ position_range seen_by_rows(const Task& task, const step_item& item, int kv_head, int first_row, int rows) {
  constexpr bool narrows = requires(where w) {
    task.variant.tiles(w);
  };
  if (rows <= 0) return {};
  if constexpr (!narrows) {
    return {0, no_end};
  } else {
    position_range seen{no_end, 0};
    const int lane = int(threadIdx.x) % 32;
    if (lane < rows) seen = tiles_of(task.variant, where_of(task, item, kv_head, first_row + lane));
    for (int step = 16; step > 0; step /= 2) {
      seen.first = smaller(seen.first, __shfl_xor_sync(0xffffffffu, seen.first, step));
      seen.last = larger(seen.last, __shfl_xor_sync(0xffffffffu, seen.last, step));
    }
    return seen;
  }
}

/// Steps of one segment, [first, last).
struct step_range {
  int first = 0, last = 0;
};

/// Those of a segment's steps that hold a position of `seen`. NOTE: where positions go up by one from row to row, as in
/// every interval; elsewhere all.
template <class Segment>
__device__ step_range visible_steps(const Segment& seg, const lengths& n, int sequence, int head, position_range seen) {
  const idx count = seg.retention.count(n, sequence, head);
  if (count <= 0 || seen.first >= seen.last) return {};
  const kept_row oldest = seg.retention.at(n, sequence, head, 0);
  const int skipped = int(oldest.slot % work_shape::tokens);
  idx first = 0, last = count;
  if constexpr (requires { Segment::retention_type::slides; }) {
    first = larger(seen.first - oldest.position, 0);
    last = smaller(larger(seen.last - oldest.position, 0), count);
  }
  if (first >= last) return {};
  return {int((skipped + first) / work_shape::tokens), int(ceil_div(skipped + last, work_shape::tokens))};
}

/// What of a unit's steps [seat.step, seat.end) lies in segment `which`, in that segment's own count.
template <class Task>
__device__ step_range run_of(const Task& task, const step_item& item, const unit_seat& seat, int which,
                             position_range seen) {
  step_range run;
  int before = 0, i = 0;
  task.view.each([&](const auto& seg) {
    if (i == which) {
      run = visible_steps(seg, item.n, item.sequence, seat.head, seen);
      run.first = int(larger(run.first, seat.step - before));
      run.last = int(smaller(run.last, seat.end - before));
    }
    if (i++ < which) before += segment_steps(seg, item.n, item.sequence, task.work.shape.kv_heads);
  });
  return run;
}

}  // namespace kvilt::inline KVILT_ABI::detail
