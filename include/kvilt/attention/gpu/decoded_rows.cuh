#pragma once

#include <kvilt/attention/gpu/code_traits.cuh>
#include <kvilt/attention/gpu/key_loader.cuh>
#include <kvilt/attention/gpu/rows.cuh>

/// \file
/// Rows of formats that the tensor cores do not read: decoded by the warp into shared memory, when their step is taken.

namespace kvilt::inline KVILT_ABI::detail {

/// Rows as pairs of bfloat16 whose sum they are: a plane of the first, and one of the second. `row_of(i)` is called by all
/// lanes at once.
template <int Pitch, class Format, class RowOf>
__device__ void decode_rows(const Format& f, ptx::u32 to, ptx::u32 alive, RowOf row_of) {
  constexpr int chunks = Pitch / 16, tokens = work_shape::tokens;
  constexpr auto bf16 = ptx::numbers::bf16;
  constexpr int turns = tokens * chunks / 32, most = turns % 4 == 0 ? 4 : 2;  // on their way at once
  static_assert(turns % most == 0);
#pragma unroll 1
  for (int first = 0; first < turns; first += most) {
    float x[most][8];
    ptx::u32 at[most];
#pragma unroll
    for (int k = 0; k < most; ++k) {
      const int i = (first + k) * 32 + int(threadIdx.x) % 32, row = i / chunks, chunk = i % chunks;
      at[k] = to + chunk_at<Pitch>(row, chunk);
      // What is not there is read where something is, and dropped: so that nothing is between one load and the next.
      const bool there = (alive >> row & 1) && 8 * chunk < f.dim();
      const row_ref from = row_of(alive >> row & 1 ? row : __ffs(int(alive)) - 1);
      f.template decode<8>(from, there ? 8 * chunk : 0, x[k]);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[k][j] = there ? x[k][j] : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < most; ++k) {
      uint4 whole, rest;
      whole.x = ptx::pack<bf16>(x[k][0], x[k][1]), whole.y = ptx::pack<bf16>(x[k][2], x[k][3]);
      whole.z = ptx::pack<bf16>(x[k][4], x[k][5]), whole.w = ptx::pack<bf16>(x[k][6], x[k][7]);
      rest.x = ptx::pack_rest<bf16>(x[k][0], x[k][1], whole.x),
      rest.y = ptx::pack_rest<bf16>(x[k][2], x[k][3], whole.y);
      rest.z = ptx::pack_rest<bf16>(x[k][4], x[k][5], whole.z),
      rest.w = ptx::pack_rest<bf16>(x[k][6], x[k][7], whole.w);
      ptx::store_shared_16(at[k], whole);
      ptx::store_shared_16(at[k] + tokens * Pitch, rest);
    }
  }
}

/// The rows of one step of a segment, from row `first` on, of those formats that are decoded. `alive`: which of its tokens
/// are there.
template <class K, class V, class Task, class Segment>
__device__ void decode_step(const warp_unit<Task>& unit, const Segment& seg, int first, ptx::u32 alive, ptx::u32 keys,
                            ptx::u32 values) {
  constexpr int tokens = work_shape::tokens;
  const int sequence = unit.item.sequence, head = unit.head, token = unit.lane() % tokens;
  place p;
  if (alive >> token & 1)
    p = seg.layout.locate(sequence, head,
                          seg.retention.at(unit.task.items[unit.number_of_item].n, sequence, head, first + token).slot);
  const auto place_of = [&](int lane) {
    return place{idx(__shfl_sync(0xffffffffu, static_cast<long long>(p.page), lane)),
                 __shfl_sync(0xffffffffu, p.row, lane), 1};
  };
  if constexpr (K::decoded)
    decode_rows<K::pitch>(seg.k, keys, alive, [&](int row) { return seg.k_row(place_of(row), head); });
  if constexpr (V::decoded)
    decode_rows<V::pitch>(seg.v, values, alive, [&](int row) { return seg.v_row(place_of(row), head); });
  __syncwarp();
}

}  // namespace kvilt::inline KVILT_ABI::detail
