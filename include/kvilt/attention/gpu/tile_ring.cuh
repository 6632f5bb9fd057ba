#pragma once

#include <kvilt/attention/gpu/task.cuh>

/// \file
/// The tiles of a warp's ring: where their chunks lie, and what is said of them.

namespace kvilt::inline KVILT_ABI::detail {

/// Where a tile lies in a warp's ring: keys and then values; and what is noted of it: its label, positions, params of K and
/// V, and a unit's queries.
struct ring_slot {
  ptx::u32 codes = 0, notes = 0;
};

/// What is told with a tile to whom takes it. The second half only where a unit begins.
struct tile_label {
  using u32 = ptx::u32;
  static constexpr u32 there = 1, begins_run = 2, begins_unit = 4;
  static constexpr int segment_shift = 8;
  static constexpr int row_at = 44;  // the first token's row of the segment, where tiles are `numbered`
  static constexpr int positions_at = tile_label_bytes;

  u32 flags = 0;                 // what begins with the tile, and its segment
  u32 alive = 0;                 // bit i: token i is there and may be seen
  u32 k_upper = 0, v_upper = 0;  // bit i: its params are in the upper half of their 4 bytes

  __device__ static tile_label of(const ring_slot& slot) {
    const uint4 v = ptx::load_shared_16(slot.notes);
    return {v.x, v.y, v.z, v.w};
  }
  __device__ void put(const ring_slot& slot) const {
    ptx::store_shared_16(slot.notes, {flags, alive, k_upper, v_upper});
  }
  __device__ bool says(u32 what) const { return (flags & what) != 0; }
  __device__ int segment() const { return int(flags >> segment_shift); }
};
struct unit_label {
  using u32 = ptx::u32;
  static constexpr u32 opens = 1, closes = 2, has_queries = 4;
  static constexpr int count_shift = 8, head_shift = 16;
  static_assert(work_shape::most_heads <= 1 << (32 - head_shift));

  u32 item = 0;   // number of the item
  u32 part = 0;   // flags, rows, KV head
  int first = 0;  // row of the item's
  item_rows rows;

  __device__ static unit_label of(const ring_slot& slot) {
    const uint4 a = ptx::load_shared_16(slot.notes + 16), b = ptx::load_shared_16(slot.notes + 32);
    return {a.x, a.y, int(a.z), {int(a.w), int(b.x), idx(std::uint64_t(b.z) << 32 | b.y)}};
  }
  __device__ void put(const ring_slot& slot) const {
    ptx::store_shared_16(slot.notes + 16, {item, part, u32(first), u32(rows.sequence)});
    ptx::store_shared_16(slot.notes + 32,
                         {u32(rows.first_position), u32(rows.q_row), u32(std::uint64_t(rows.q_row) >> 32), 0});
  }
  __device__ bool says(u32 what) const { return (part & what) != 0; }
  __device__ int count() const { return int(part >> count_shift & 0xff); }
  __device__ int head() const { return int(part >> head_shift); }
};

/// What the chunk's number is changed by where chunks of row `row` lie: so that one chunk of eight rows meets no bank twice.
template <int Pitch>
__device__ int swizzle(int row) {
  static_assert(Pitch % 64 == 0);
  if constexpr (Pitch % 128 == 0)
    return row % 8;
  else
    return row / 2 % 4;
}
/// Bytes from a tile to chunk `chunk` of row `row`.
template <int Pitch>
__device__ ptx::u32 chunk_at(int row, int chunk) {
  return ptx::u32(row * Pitch + (chunk ^ swizzle<Pitch>(row)) * 16);
}

/// The same of chunks 2 x block and 2 x block + 1: from where chunk 0 or 1 of the row lies.
template <int Pitch>
__device__ ptx::u32 pair_at(ptx::u32 first, int block) {
  constexpr int pairs = Pitch % 128 == 0 ? 4 : 2;  // that change places with each other
  return (first ^ ptx::u32(block % pairs * 32)) + ptx::u32(block / pairs * (pairs * 32));
}
/// The same of row `row + more` where `more` is a multiple of a power of two that `row` is less than, from where the chunk
/// of row `row` lies.
template <int Pitch>
__device__ ptx::u32 below(ptx::u32 chunk, int more) {
  return (chunk ^ ptx::u32(swizzle<Pitch>(more) * 16)) + ptx::u32(more * Pitch);
}

}  // namespace kvilt::inline KVILT_ABI::detail
