#pragma once

#include <kvilt/attention/gpu/tile_ring.cuh>

namespace kvilt::inline KVILT_ABI::detail {

/// The copies of a tile's rows from a KV head's planes to the ring, by a warp. Strides of planes fit 32 bits.
template <int DimStep, int Rows>
class tile_copies {
 public:
  /// For the tiles of one segment and head.
  template <class Segment>
  __device__ void begin(const Segment& seg, int head) {
    const geometry& g = seg.planes;
    k_codes_ = head_of(g.k_codes, head), v_codes_ = head_of(g.v_codes, head);
    k_params_ = head_of(g.k_params, head), v_params_ = head_of(g.v_params, head);
  }

  /// The codes of a tile's tokens, one a lane: those that are `alive`, and zeros where others are. Bits 0 and 16 of
  /// `together`: sixteen rows follow each other in their page.
  template <class Segment>
  __device__ void codes(const Segment& seg, ptx::u32 keys, ptx::u32 values, int page, int row, ptx::u32 alive,
                        ptx::u32 together) const {
    using tile = device_tile<Segment>;
    constexpr int of_tile = tile::tokens(DimStep, Rows), steps = of_tile / tokens;
    constexpr int k_pitch = tile::k_pitch(DimStep), v_pitch = tile::v_pitch(DimStep);
    const int k_bytes = tile_row_bytes(seg.k), v_bytes = tile_row_bytes(seg.v);
    const bool whole = alive == (2u << (of_tile - 1)) - 1 && (together & 1) && (together >> (of_tile - tokens) & 1);
    // Where a page's rows of a head lie close by each other they are one stretch of bytes.
    const bool close = (!tile::k_codes || (k_bytes == k_pitch && seg.planes.k_codes.record_stride == k_pitch)) &&
                       (!tile::v_codes || (v_bytes == v_pitch && seg.planes.v_codes.record_stride == v_pitch));
    int pages[steps], rows[steps];  // of the first token of each step
#pragma unroll
    for (int i = 0; i < steps; ++i)
      pages[i] = __shfl_sync(all, page, i * tokens), rows[i] = __shfl_sync(all, row, i * tokens);
    if (whole && close) {
#pragma unroll
      for (int i = 0; i < steps; ++i) {
        if constexpr (tile::k_codes)
          copy_stretch<k_pitch>(keys + i * tokens * k_pitch,
                                place_of(k_codes_, seg.planes.k_codes, pages[i], rows[i]) + 16 * lane());
        if constexpr (tile::v_codes)
          copy_stretch<v_pitch>(values + i * tokens * v_pitch,
                                place_of(v_codes_, seg.planes.v_codes, pages[i], rows[i]) + 16 * lane());
      }
    } else if (alive != 0) {
      const unsigned char* const k_mine = place_of(k_codes_, seg.planes.k_codes, page, row);
      const unsigned char* const v_mine = place_of(v_codes_, seg.planes.v_codes, page, row);
#pragma unroll
      for (int i = 0; i < steps; ++i) {
        const ptx::u32 those = alive >> (i * tokens) & 0xffff;
        if (those == 0xffff && (together >> (i * tokens) & 1)) {
          const auto first = [&](const unsigned char* mine) {
            return reinterpret_cast<const unsigned char*>(
                __shfl_sync(all, reinterpret_cast<unsigned long long>(mine), i * tokens));
          };
          if constexpr (tile::k_codes)
            copy_run<k_pitch>(keys + i * tokens * k_pitch, first(k_mine), seg.planes.k_codes.record_stride, k_bytes);
          if constexpr (tile::v_codes)
            copy_run<v_pitch>(values + i * tokens * v_pitch, first(v_mine), seg.planes.v_codes.record_stride, v_bytes);
        } else {
          if constexpr (tile::k_codes)
            copy_rows<k_pitch>(keys + i * tokens * k_pitch, k_mine, those, i * tokens, k_bytes);
          if constexpr (tile::v_codes)
            copy_rows<v_pitch>(values + i * tokens * v_pitch, v_mine, those, i * tokens, v_bytes);
        }
      }
    }
  }

  /// Params of a tile's tokens, one a lane, where they are `there`. Bit i: those of token i are in the upper half of their 4
  /// bytes.
  template <class Segment>
  __device__ ptx::u32 k_params(const Segment& seg, ptx::u32 to, int page, int row, bool there) const {
    return copy_params<device_tile<Segment>::tokens(DimStep, Rows)>(
        to, place_of(k_params_, seg.planes.k_params, page, row), there);
  }
  template <class Segment>
  __device__ ptx::u32 v_params(const Segment& seg, ptx::u32 to, int page, int row, bool there) const {
    return copy_params<device_tile<Segment>::tokens(DimStep, Rows)>(
        to, place_of(v_params_, seg.planes.v_params, page, row), there);
  }

 private:
  static constexpr int tokens = work_shape::tokens;
  static constexpr ptx::u32 all = 0xffffffffu;

  __device__ static int lane() {
    return int(threadIdx.x) % 32;
  }

  /// Where a head's records of page 0 lie.
  __device__ static const unsigned char* head_of(const plane& p, int head) {
    return p.base + std::uint64_t(ptx::u32(head)) * ptx::u32(p.head_stride);
  }
  /// A record; `from`: `head_of`. NOTE: where there is none it may be anywhere.
  __device__ static const unsigned char* place_of(const unsigned char* from, const plane& p, int page, int row) {
    using u64 = std::uint64_t;
    using ptx::u32;
    return from + u64(u32(page)) * u32(p.page_stride) + u64(u32(row)) * u32(p.record_stride);
  }
  template <int OfTile>
  __device__ static ptx::u32 copy_params(ptx::u32 to, const unsigned char* from, bool there) {
    const auto at = reinterpret_cast<std::uintptr_t>(from);
    if (lane() < OfTile)
      ptx::copy_word_async(to + 4u * ptx::u32(lane()), reinterpret_cast<const void*>(at & ~std::uintptr_t(3)), there);
    return __ballot_sync(all, (ptx::u32(at) & 2) != 0);
  }

  /// The rows of a step that are one stretch of bytes, of which this lane has the first 16 of every 512 at `from`.
  template <int Pitch>
  __device__ static void copy_stretch(ptx::u32 to, const unsigned char* from) {
    constexpr int chunks = Pitch / 16, at_once = 32 / chunks;  // rows
    if constexpr (at_once > 0 && 32 % chunks == 0) {
      const ptx::u32 there = chunk_at<Pitch>(lane() / chunks, lane() % chunks);
#pragma unroll
      for (int k = 0; k < tokens / at_once; ++k) ptx::copy_async(to + below<Pitch>(there, k * at_once), from + k * 512);
    } else {
#pragma unroll
      for (int k = 0; k < tokens * chunks / 32; ++k) {
        const int i = k * 32 + lane();
        ptx::copy_async(to + chunk_at<Pitch>(i / chunks, i % chunks), from + k * 512);
      }
    }
  }
  /// Rows `stride` bytes apart.
  template <int Pitch>
  __device__ static void copy_run(ptx::u32 to, const unsigned char* from, idx stride, int bytes) {
    constexpr int chunks = Pitch / 16;
#pragma unroll
    for (int k = 0; k < tokens * chunks / 32; ++k) {
      const int i = k * 32 + lane(), row = i / chunks, chunk = i % chunks;
      copy_chunk<Pitch>(to + chunk_at<Pitch>(row, chunk), chunk, from + row * stride + 16 * chunk, bytes);
    }
  }
  /// Rows whose addresses lanes `first_lane` and on have. Those that are not alive are zero.
  template <int Pitch>
  __device__ static void copy_rows(ptx::u32 to, const unsigned char* at, ptx::u32 alive, int first_lane, int bytes) {
    constexpr int chunks = Pitch / 16;
#pragma unroll
    for (int k = 0; k < tokens * chunks / 32; ++k) {
      const int i = k * 32 + lane(), row = i / chunks, chunk = i % chunks;
      const auto from = reinterpret_cast<const unsigned char*>(
                            __shfl_sync(all, reinterpret_cast<unsigned long long>(at), first_lane + row)) +
                        16 * chunk;
      const bool there = alive >> row & 1;
      if (bytes == Pitch)
        ptx::copy_async(to + chunk_at<Pitch>(row, chunk), from, there);
      else
        copy_part(to + chunk_at<Pitch>(row, chunk), chunk, from, there ? bytes : 0);
    }
  }

  /// One chunk of a row of `bytes` bytes, which may end in it or before it.
  template <int Pitch>
  __device__ static void copy_chunk(ptx::u32 to, int chunk, const unsigned char* from, int bytes) {
    if (bytes == Pitch)
      ptx::copy_async(to, from);
    else
      copy_part(to, chunk, from, bytes);
  }
  __device__ static void copy_part(ptx::u32 to, int chunk, const unsigned char* from, int bytes) {
    const int left = bytes - 16 * chunk;
    if (bytes % 16 == 0)
      ptx::copy_async(to, from, left > 0);
    else
      ptx::copy_async(to, from, ptx::u32(left < 0 ? 0 : left > 16 ? 16 : left));
  }

  const unsigned char *k_codes_ = nullptr, *v_codes_ = nullptr, *k_params_ = nullptr, *v_params_ = nullptr;
};

}  // namespace kvilt::inline KVILT_ABI::detail
