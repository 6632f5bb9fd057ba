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
#pragma unroll 1
  for (int i = int(threadIdx.x) % 32; i < tokens * chunks; i += 32) {
    const int row = i / chunks, chunk = i % chunks;
    const row_ref from = row_of(row);
    float x[8] = {};
    if ((alive >> row & 1) && 8 * chunk < f.dim()) f.template decode<8>(from, 8 * chunk, x);
    uint4 first, rest;
    first.x = ptx::pack<bf16>(x[0], x[1]), first.y = ptx::pack<bf16>(x[2], x[3]);
    first.z = ptx::pack<bf16>(x[4], x[5]), first.w = ptx::pack<bf16>(x[6], x[7]);
    rest.x = ptx::pack_rest<bf16>(x[0], x[1], first.x), rest.y = ptx::pack_rest<bf16>(x[2], x[3], first.y);
    rest.z = ptx::pack_rest<bf16>(x[4], x[5], first.z), rest.w = ptx::pack_rest<bf16>(x[6], x[7], first.w);
    const ptx::u32 at = to + chunk_at<Pitch>(row, chunk);
    ptx::store_shared_16(at, first);
    ptx::store_shared_16(at + tokens * Pitch, rest);
  }
}

/// The rows of one step of a segment, of those formats that are decoded. `alive`: which of its tokens are there.
template <class K, class V, class Task, class Segment>
__device__ void decode_step(const warp_unit<Task>& unit, const Segment& seg, int step, ptx::u32 alive, ptx::u32 keys,
                            ptx::u32 values) {
  constexpr int tokens = work_shape::tokens;
  const lengths n = unit.item->n;
  const int sequence = unit.item->sequence, head = unit.head, token = unit.lane() % tokens;
  const idx count = seg.retention.count(n, sequence, head);
  const int skipped = int(seg.retention.at(n, sequence, head, 0).slot % tokens);
  const idx i = smaller(larger(idx(step) * tokens - skipped + token, 0), count - 1);
  place p;
  if (alive >> token & 1) p = seg.layout.locate(sequence, head, seg.retention.at(n, sequence, head, i).slot);
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
