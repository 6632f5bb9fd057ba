#pragma once

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
/// The step for a view's rows; 0 where every dim is fixed.
template <kv_view View>
constexpr int dim_step(const View& view) {
  bool fixed = true;
  view.each([&](const auto& seg) {
    using segment_type = std::remove_cvref_t<decltype(seg)>;
    fixed = fixed && static_dim<typename segment_type::k_format>() != dynamic &&
            static_dim<typename segment_type::v_format>() != dynamic;
  });
  if (fixed) return 0;
  for (const int step : dim_steps)
    if (view.k_dim() <= step && view.v_dim() <= step) return step;
  return longest_device_row;
}

/// Floats that go with a row of queries or results, beside it.
inline constexpr int device_row_notes = 2;

/// A segment's tiles of `work_shape::tokens` rows. Rows are multiples of 64 bytes apart; their last chunks may be
/// padding, which is zero.
template <kv_segment Segment>
struct device_tile {
  using k_format = typename Segment::k_format;
  using v_format = typename Segment::v_format;
  static constexpr bool k_codes = multiplied_as_codes<k_format>(), v_codes = multiplied_as_codes<v_format>();
  static constexpr int tokens = 16;
  static constexpr bool k_params = params_of_records<k_format>(), v_params = params_of_records<v_format>();
  /// Beside codes: positions, which tokens are alive, and params of K and V.
  static constexpr int notes = k_params || v_params ? 208 : 80;

  KVILT_HD static constexpr int pitch(int dim, int bits) { return int(round_up(idx(dim) * bits / 8, 64)); }
  KVILT_HD static constexpr int k_pitch(int step) { return pitch(padded_dim<k_format>(step), tile_bits<k_format>()); }
  KVILT_HD static constexpr int v_pitch(int step) { return pitch(padded_dim<v_format>(step), tile_bits<v_format>()); }
  /// Bytes of a step on its way.
  KVILT_HD static constexpr int stage_bytes(int step) {
    return notes + tokens * ((k_codes ? k_pitch(step) : 0) + (v_codes ? v_pitch(step) : 0));
  }
  /// Bytes of the tiles into which rows are decoded.
  KVILT_HD static constexpr int decoded_bytes(int step) {
    return tokens * ((k_codes ? 0 : 2 * k_pitch(step)) + (v_codes ? 0 : 2 * v_pitch(step)));
  }
  /// Floats of a row of queries or results.
  KVILT_HD static constexpr int row_stride(int step) {
    const int k = padded_dim<k_format>(step), v = padded_dim<v_format>(step);
    return int(round_up(k > v ? k : v, 32));
  }
  /// Bytes of eight of them, and of their notes.
  KVILT_HD static constexpr int rows_bytes(int step) {
    return 8 * int(sizeof(float)) * (row_stride(step) + device_row_notes);
  }
};

/// Shared memory of a warp: of a step on its way, of rows that are decoded, and of eight rows of floats. The most that
/// any segment needs.
struct warp_bytes {
  static constexpr int state = 80;  // of the loader
  int stage = 0, decoded = 0, rows = 0;

  template <kv_view View>
  KVILT_HD static constexpr warp_bytes of(int step) {
    return of_segments(step, static_cast<const View*>(nullptr));
  }
  /// `queries`: of those that are kept in shared memory.
  KVILT_HD constexpr int total(int stages, int queries) const {
    return state + rows + queries + decoded + stages * stage;
  }

 private:
  template <memory_space Space, class... Segments>
  KVILT_HD static constexpr warp_bytes of_segments(int step, const view<Space, Segments...>*) {
    warp_bytes most;
    ((most.stage = int(larger(most.stage, device_tile<Segments>::stage_bytes(step)))), ...);
    ((most.decoded = int(larger(most.decoded, device_tile<Segments>::decoded_bytes(step)))), ...);
    ((most.rows = int(larger(most.rows, device_tile<Segments>::rows_bytes(step)))), ...);
    return most;
  }
};

/// Warps of a block on an H100, for units of `rows` query rows. Half as many again where three steps of each are then on
/// their way: rows of 8 bits and less are so few bytes that a step's arithmetic takes longer than its copies.
template <kv_view View>
KVILT_HD constexpr int block_warps(int step, int rows) {
  constexpr int shared = 227 * 1024, many = 12, few = 8;
  return rows == 8 && many * warp_bytes::of<View>(step).total(3, 0) <= shared ? many : few;
}
/// What a warp may have in shared memory: its part of a block's on an H100, and at least two steps on their way.
template <kv_view View>
KVILT_HD constexpr int warp_budget(int step, int rows) {
  constexpr int shared = 227 * 1024, most_query_bytes = 8192,
                most_row_bytes = 8 * int(sizeof(float)) * (128 + device_row_notes);
  // NOTE: eight queries of up to 128 numbers are kept in registers.
  const bool in_registers = rows == 8 && warp_bytes::of<View>(step).rows <= most_row_bytes;
  return int(larger(shared / block_warps<View>(step, rows),
                    warp_bytes::of<View>(step).total(2, in_registers ? 0 : most_query_bytes)));
}

}  // namespace kvilt::inline KVILT_ABI::detail
