#pragma once

#include <kvilt/cache/device_step.hpp>

namespace kvilt::inline KVILT_ABI::detail {

/// a / b, which is less than `most`. NOTE: a division of 64 bits is a call.
__device__ inline idx quotient(idx a, int b, idx most) {
  if (a >> 31 == 0) return idx(std::uint32_t(a) / std::uint32_t(b));
  idx low = 0;
  while (most - low > 1) {
    const idx middle = (low + most) / 2;
    (middle * b <= a ? low : most) = middle;
  }
  return low;
}

/// Rows of the unit that begins with row `first` of a sequence's.
__device__ inline int unit_rows(const work_shape& shape, int queries, int first) {
  const int left = queries * shape.group.value() - first;
  return left < shape.rows ? left : shape.rows;
}

/// The unit to which position `at` of the line belongs, as far as `end`; `item` is its sequence or one before it.
__device__ inline unit_seat seat_at(const work_plan& work, const step_item* items, idx at, idx end, int item) {
  while (work.line[item + 1] <= at) ++item;
  const idx in_item = at - work.line[item];
  const int queries = items[item].queries, blocks = int(work.shape.row_blocks(queries));
  unit_seat seat;
  seat.item = item;
  seat.steps = work.steps[item];
  const idx unit = quotient(in_item, seat.steps, idx(blocks) * (work.shape.kv_heads / work.shape.heads));
  const int head_block = int(unit) / blocks, row_block = int(unit) - head_block * blocks;
  seat.head = head_block * work.shape.heads;
  seat.first_row = row_block * work.shape.rows;
  seat.rows = unit_rows(work.shape, queries, seat.first_row);
  seat.step = int(in_item - unit * seat.steps);
  seat.end = int(smaller(seat.steps, seat.step + (end - at)));
  return seat;
}

}  // namespace kvilt::inline KVILT_ABI::detail
