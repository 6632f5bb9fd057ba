#pragma once

#include <kvilt/cache/device_tile.hpp>

/// \file
/// What a block of the device's attention needs that takes many query rows at once.

namespace kvilt::inline KVILT_ABI::detail {

/// Are items of many query rows a block's affair? Rows that are decoded first are too wide for that.
template <memory_space Space, class... Segments>
consteval bool taken_by_blocks(const view<Space, Segments...>*) {
  return (!device_tile<Segments>::decoded && ...);
}
template <kv_view View>
consteval bool taken_by_blocks() {
  return taken_by_blocks(static_cast<const View*>(nullptr));
}

/// A segment's tiles as 16-bit numbers, to which narrower codes are widened.
template <kv_segment Segment>
struct wide_tile {
  using tile = device_tile<Segment>;
  using k_format = typename Segment::k_format;
  using v_format = typename Segment::v_format;
  static constexpr bool widens_k = tile_bits<k_format>() < 16, widens_v = tile_bits<v_format>() < 16;

  KVILT_HD static constexpr int k_dim(int dims) { return padded_dim<k_format>(dims); }
  KVILT_HD static constexpr int v_dim(int dims) { return padded_dim<v_format>(dims); }
  KVILT_HD static constexpr int k_pitch(int dims) { return tile::pitch(k_dim(dims), 16); }
  KVILT_HD static constexpr int v_pitch(int dims) { return tile::pitch(v_dim(dims), 16); }
  /// Bytes of a token's numbers beside its codes.
  KVILT_HD static constexpr int token_bytes(int dims) {
    return (widens_k ? k_pitch(dims) : 0) + (widens_v ? v_pitch(dims) : 0);
  }
};

/// The rows of a block, 16 to a band, and its shared memory: queries; a ring of two tiles, where rows of floats lie while
/// there are none; a tile that has been widened; and notes. In the end all but these is the results'. So much that two
/// blocks fit a multiprocessor of sm_90.
struct block_bytes {
  static constexpr int warps = 4, threads = 32 * warps, slots = 2;
  static constexpr int notes = 8192;

  int bands = 0;       // of a warp
  int tokens = 0;      // of a tile
  int queries = 0;     // bytes of a row's
  int codes = 0;       // bytes of a token's
  int widened = 0;     // the same
  int row_stride = 0;  // floats of a row on its way to the tensor cores or from them
  int v_dim = 0;       // numbers of a result, in sixteens

  template <kv_view View>
  KVILT_HD static constexpr block_bytes of(int dims) {
    return of_segments(dims, static_cast<const View*>(nullptr));
  }
  KVILT_HD constexpr int warp_rows() const { return 16 * bands; }
  KVILT_HD constexpr int rows() const { return warps * warp_rows(); }
  KVILT_HD constexpr int ring_at() const { return rows() * queries; }
  KVILT_HD constexpr int widened_at() const { return ring_at() + slots * tokens * codes; }
  /// Eight rows of floats of each warp, and their notes.
  KVILT_HD constexpr int scratch() const { return 8 * int(sizeof(float)) * (row_stride + device_row_notes); }
  KVILT_HD constexpr int notes_at() const {
    const idx tiles = widened_at() + tokens * widened, floats = ring_at() + warps * scratch(),
              results = warps * 2 * bands * scratch();
    return int(round_up(larger(tiles, larger(floats, results)), warp_bytes::line));
  }
  KVILT_HD constexpr int total() const { return notes_at() + notes; }

 private:
  template <memory_space Space, class... Segments>
  KVILT_HD static constexpr block_bytes of_segments(int dims, const view<Space, Segments...>*) {
    block_bytes most;
    const auto raise = [](int& to, int x) { to = x > to ? x : to; };
    const auto sixteens = [](int dim) { return (dim + 15) / 16 * 16; };
    (raise(most.queries, wide_tile<Segments>::k_pitch(dims)), ...);
    (raise(most.codes, device_tile<Segments>::token_bytes(dims)), ...);
    (raise(most.widened, wide_tile<Segments>::token_bytes(dims)), ...);
    (raise(most.v_dim, sixteens(wide_tile<Segments>::v_dim(dims))), ...);
    most.row_stride = most.v_dim;
    (raise(most.row_stride, sixteens(wide_tile<Segments>::k_dim(dims))), ...);
    // NOTE: results of a row of 256 numbers take the registers of two rows of 128.
    const bool wide = most.row_stride > 128;
    most.row_stride += 4;
    most.bands = wide ? 1 : 2;
    most.tokens = wide ? 32 : 64;
    return most;
  }
};

}  // namespace kvilt::inline KVILT_ABI::detail
