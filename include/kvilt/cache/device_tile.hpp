#pragma once

#include <kvilt/cache/device_step.hpp>
#include <kvilt/cache/keys_view.hpp>
#include <kvilt/cache/view.hpp>
#include <kvilt/core/math.hpp>

/// \file
/// How keys and values of one step lie in shared memory, where the device's attention works on them.

namespace kvilt::inline KVILT_ABI::detail {

/// Does the device multiply the format's codes as they lie? Others are decoded first, into pairs of bfloat16 whose sum
/// they are: right for every format, and slower.
template <kv_format F>
consteval bool multiplied_as_codes() {
  if constexpr (plain_format<F>)
    return F::plain.codes != code_kind::fp32;
  else
    return false;
}
template <kv_format F>
consteval int tile_bits() {
  if constexpr (multiplied_as_codes<F>())
    return bits_of(F::plain.codes);
  else
    return 16;
}

/// Bytes of a row's codes, of a format whose codes are multiplied as they lie. NOTE: not `code_bytes`, which is 0 where V
/// lies in K's records.
template <kv_format F>
KVILT_HD int tile_row_bytes(const F& f) {
  return f.dim() * tile_bits<F>() / 8;
}

/// Has every record params of its own?
template <kv_format F>
consteval bool params_of_records() {
  if constexpr (multiplied_as_codes<F>())
    return F::plain.params == param_kind::scale16 || F::plain.params == param_kind::scale_zero;
  else
    return false;
}

/// Dims for which kernels are compiled: a format's own, or the next of these where it is known at run time.
inline constexpr int dim_steps[] = {64, 128, 256};
inline constexpr int longest_device_row = 256;

template <kv_format F>
KVILT_HD constexpr int padded_dim(int step) {
  return static_dim<F>() == dynamic ? step : static_dim<F>();
}
/// Are the dims of all segments known when compiled?
template <memory_space Space, class... Segments>
consteval bool fixed_dims(const view<Space, Segments...>*) {
  return (
      (static_dim<typename Segments::k_format>() != dynamic && static_dim<typename Segments::v_format>() != dynamic) &&
      ...);
}
/// The step for a view's rows; 0 where every dim is fixed.
template <kv_view View>
constexpr int dim_step([[maybe_unused]] const View& view) {
  if constexpr (fixed_dims(static_cast<const View*>(nullptr))) {
    return 0;
  } else {
    for (const int step : dim_steps)
      if (view.k_dim() <= step && view.v_dim() <= step) return step;
    return longest_device_row;
  }
}

/// Bytes of what is said of a tile, before what is noted of its tokens.
inline constexpr int tile_label_bytes = 48;
/// Floats that go with a row of queries or results, beside it.
inline constexpr int device_row_notes = 2;

/// A segment's tiles: the rows that a warp takes at once. Rows are multiples of 64 bytes apart; their last chunks may be
/// padding, which is zero.
template <kv_segment Segment>
struct device_tile {
  using k_format = typename Segment::k_format;
  using v_format = typename Segment::v_format;
  static constexpr bool k_codes = multiplied_as_codes<k_format>(), v_codes = multiplied_as_codes<v_format>();
  static constexpr bool reads_values = !is_unread<v_format>;
  static constexpr bool decoded = !k_codes || (reads_values && !v_codes);
  /// Is a tile told which row of the segment it begins with? For what is decoded, and for sums by rows.
  static constexpr bool numbered = decoded || !reads_values;
  static constexpr bool k_params = params_of_records<k_format>(), v_params = params_of_records<v_format>();

  KVILT_HD static constexpr int pitch(int dim, int bits) { return int(round_up(idx(dim) * bits / 8, 64)); }
  KVILT_HD static constexpr int k_pitch(int dims) { return pitch(padded_dim<k_format>(dims), tile_bits<k_format>()); }
  KVILT_HD static constexpr int v_pitch(int dims) { return pitch(padded_dim<v_format>(dims), tile_bits<v_format>()); }
  KVILT_HD static constexpr int token_bytes(int dims) {
    return (k_codes ? k_pitch(dims) : 0) + (v_codes ? v_pitch(dims) : 0);
  }
  /// Two steps where codes are narrow, so that one's arithmetic need not wait for its own; `rows`: of a warp's queries.
  KVILT_HD static constexpr int tokens(int dims, int rows) {
    return !decoded && rows == 8 && work_shape::tokens * token_bytes(dims) <= 4096 ? 2 * work_shape::tokens
                                                                                   : work_shape::tokens;
  }
  /// Warps of a block: more where codes are so narrow that arithmetic takes as long as memory. NOTE: as many without
  /// values as with them, since one plan is for both.
  KVILT_HD static constexpr int warps(int dims, int rows) {
    if constexpr (!reads_values)
      return device_tile<segment<typename Segment::layout_type, typename Segment::retention_type, k_format,
                                 typename v_format::format>>::warps(dims, rows);
    else
      return !decoded && rows == 8 && work_shape::tokens * token_bytes(dims) <= 2048 ? 12 : 8;
  }
  /// Bytes of codes, and of what is noted beside them: a label, positions, and params of K and V, 4 bytes each.
  KVILT_HD static constexpr int code_bytes(int dims, int rows) { return tokens(dims, rows) * token_bytes(dims); }
  KVILT_HD static constexpr int note_bytes(int dims, int rows) {
    return tile_label_bytes + tokens(dims, rows) * (k_params || v_params ? 12 : 4);
  }
  /// Bytes of the tiles into which rows are decoded.
  KVILT_HD static constexpr int decoded_bytes(int dims) {
    return work_shape::tokens *
           ((k_codes ? 0 : 2 * k_pitch(dims)) + (v_codes || !reads_values ? 0 : 2 * v_pitch(dims)));
  }
  /// Floats of a row of queries or results.
  KVILT_HD static constexpr int row_stride(int dims) {
    const int k = padded_dim<k_format>(dims), v = padded_dim<v_format>(dims);
    return int(round_up(k > v ? k : v, 32));
  }
  /// Bytes of eight of them, and of their notes.
  KVILT_HD static constexpr int rows_bytes(int dims) {
    return 8 * int(sizeof(float)) * (row_stride(dims) + device_row_notes);
  }
  /// Bytes of eight queries of 16-bit numbers as they come with a unit's first keys. Rows are 16 bytes further apart, so
  /// that one word of each meets no bank twice.
  KVILT_HD static constexpr int query_pitch(int dims) { return 2 * padded_dim<k_format>(dims) + 16; }
};

/// Shared memory of a warp: a ring of tiles' codes, which lie on lines of `line` bytes (copied elsewhere they take a
/// fortieth more of the whole time); rows that are decoded; queries as factors, where registers do not suffice; eight rows
/// of floats; and a ring of what is noted of tiles, with the queries of a unit. As much as any segment needs.
struct warp_bytes {
  static constexpr int line = 128;
  /// A block's shared memory on an H100, and what of it may be codes on their way: enough for memory, and no more, since
  /// what waits in memory's queues keeps all else waiting.
  static constexpr int shared = 227 * 1024, on_way = 128 * 1024, most_stages = 4;
  int codes = 0, decoded = 0, rows = 0, notes = 0, queries = 0;
  int state = 0;         // of the loader; more where there is room to look an item ahead
  int most_factors = 0;  // of queries
  int warps = 0;         // of a block

  template <kv_view View>
  KVILT_HD static constexpr warp_bytes of(int dims, int rows) {
    return of_segments(dims, rows, static_cast<const View*>(nullptr));
  }
  KVILT_HD constexpr int stages() const {
    int stages = most_stages;
    while (stages > 2 && (stages * codes * warps > on_way || total_of(stages, most_factors) * warps > shared)) --stages;
    return stages;
  }
  /// `factors`: of queries in shared memory.
  KVILT_HD constexpr int total(int factors) const { return total_of(stages(), factors); }

 private:
  KVILT_HD constexpr int total_of(int stages, int factors) const {
    return int(round_up(stages * (codes + notes + queries) + decoded + factors + rows + state, line));
  }
  template <memory_space Space, class... Segments>
  KVILT_HD static constexpr warp_bytes of_segments(int dims, int rows, const view<Space, Segments...>*) {
    warp_bytes most;
    ((most.codes = int(larger(most.codes, device_tile<Segments>::code_bytes(dims, rows)))), ...);
    ((most.notes = int(larger(most.notes, device_tile<Segments>::note_bytes(dims, rows)))), ...);
    ((most.decoded = int(larger(most.decoded, device_tile<Segments>::decoded_bytes(dims)))), ...);
    ((most.rows = int(larger(most.rows, device_tile<Segments>::rows_bytes(dims)))), ...);
    most.state = rows == 8 ? 224 : 80;
    // NOTE: eight queries of up to 128 numbers are kept in registers.
    most.most_factors = rows == 8 && most.rows <= 8 * int(sizeof(float)) * (128 + device_row_notes) ? 0 : 8192;
    most.warps = 12;
    ((most.warps = int(smaller(device_tile<Segments>::warps(dims, rows), most.warps))), ...);
    if (rows == 8) ((most.queries = int(larger(most.queries, 8 * device_tile<Segments>::query_pitch(dims)))), ...);
    return most;
  }
};

/// What a warp needs in shared memory at most, for units of `rows` query rows of which it may take fewer at a time.
template <kv_view View>
KVILT_HD constexpr int warp_budget(int dims, int rows) {
  int most = 0;
  for (int r = 8; r <= rows; r *= 2) {
    const warp_bytes bytes = warp_bytes::of<View>(dims, r);
    const int total = bytes.total(bytes.most_factors);
    most = total > most ? total : most;
  }
  return most;
}

}  // namespace kvilt::inline KVILT_ABI::detail
