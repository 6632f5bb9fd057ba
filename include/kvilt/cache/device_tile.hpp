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

/// Dims for which kernels are compiled: a format's own, or the next of these where it is known at run time.
inline constexpr int dim_steps[] = {64, 128, 256};
inline constexpr int longest_device_row = 256;

template <kv_format F>
constexpr int padded_dim(int step) {
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

/// A segment's tiles of `work_shape::tokens` rows. Rows are multiples of 64 bytes apart; their last chunks may be
/// padding, which is zero.
template <kv_segment Segment>
struct device_tile {
  using k_format = typename Segment::k_format;
  using v_format = typename Segment::v_format;
  static constexpr bool k_codes = multiplied_as_codes<k_format>(), v_codes = multiplied_as_codes<v_format>();
  static constexpr int tokens = 16;
  /// Beside codes: params of K and V, positions, and which tokens are alive.
  static constexpr int notes = 256;

  static constexpr int pitch(int dim, int bits) { return int(round_up(idx(dim) * bits / 8, 64)); }
  static constexpr int k_pitch(int step) { return pitch(padded_dim<k_format>(step), tile_bits<k_format>()); }
  static constexpr int v_pitch(int step) { return pitch(padded_dim<v_format>(step), tile_bits<v_format>()); }
  /// Bytes of a step on its way.
  static constexpr int stage_bytes(int step) {
    return notes + tokens * ((k_codes ? k_pitch(step) : 0) + (v_codes ? v_pitch(step) : 0));
  }
  /// Bytes of the tiles into which rows are decoded.
  static constexpr int decoded_bytes(int step) {
    return tokens * ((k_codes ? 0 : 2 * k_pitch(step)) + (v_codes ? 0 : 2 * v_pitch(step)));
  }
  /// Bytes of eight rows of floats, of queries or of results.
  static constexpr int rows_bytes(int step) {
    const int k = padded_dim<k_format>(step), v = padded_dim<v_format>(step);
    return 8 * int(sizeof(float)) * int(round_up(k > v ? k : v, 32));
  }
};

/// The most of all segments.
struct warp_bytes {
  int stage = 0, decoded = 0, rows = 0;

  template <kv_view View>
  static constexpr warp_bytes of(const View& view, int step) {
    warp_bytes most;
    view.each([&](const auto& seg) {
      using tile = device_tile<std::remove_cvref_t<decltype(seg)>>;
      most.stage = most.stage > tile::stage_bytes(step) ? most.stage : tile::stage_bytes(step);
      most.decoded = most.decoded > tile::decoded_bytes(step) ? most.decoded : tile::decoded_bytes(step);
      most.rows = most.rows > tile::rows_bytes(step) ? most.rows : tile::rows_bytes(step);
    });
    return most;
  }
  constexpr int total(int stages) const { return stages * stage + decoded + rows; }
};

}  // namespace kvilt::inline KVILT_ABI::detail
