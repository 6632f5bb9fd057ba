#pragma once

#include <kvilt/core/math.hpp>
#include <kvilt/format/format.hpp>

namespace kvilt::inline KVILT_ABI {

/// Tiles of `Rows` tokens with their mean taken off: each row less the tile's mean is kept in the token format `F`, with
/// scales and zeros of its own. For K, of which most outliers are offsets that a channel has in every token; it then
/// costs `dim` fp16 numbers a tile to be rid of them. Its tokens gather in a 16-bit tail, so the mean is the tile's own.
/// A sequence-wide mean does the same for attention in 8 bits (J. Zhang et al., "SageAttention", 2024).
///
/// Codes: the rows' one after another, each from a 16-byte line on. Params: the mean [dim] in fp16, then the rows'. A
/// NaN has no part in the mean and is lost on its own row alone.
template <kv_format F, int Rows = 64>
class centred {
  static_assert(F::rows == 1 && !has_static_scale<F>, "kvilt: centred takes a token format that writes its own params");
  static_assert(Rows >= 2 && Rows <= 64, "kvilt: a tile has 2 to 64 tokens");
  static constexpr int fixed_dim = detail::static_dim<F>();

 public:
  using rotation = rotation_of<F>;
  static constexpr int rows = Rows;
  static constexpr int longest_dim = fixed_dim == dynamic ? 1024 : fixed_dim;
  /// The format's name and "ctr": "q4ctr".
  static constexpr const char* name() requires requires { F::name(); }
  {
    return detail::tile_name<detail::name_part(detail::name_of_parts<detail::name_part(F::name()), "ctr">()), Rows,
                             64>();
  }

  constexpr centred() = default;
  constexpr explicit centred(int dim) : row_{dim} {}
  constexpr explicit centred(const F& row) : row_(row) {}

  bool writes_like(const centred& other) const { return detail::writes_like(row_, other.row_); }
  KVILT_HD static constexpr int get() requires(fixed_dim != dynamic) { return fixed_dim; }
  KVILT_HD constexpr int group() const requires requires(const F f) { f.group(); }
  { return row_.group(); }
  KVILT_HD constexpr int dim() const { return row_.dim(); }
  KVILT_HD constexpr int code_bytes() const { return Rows * pitch(); }
  KVILT_HD constexpr int param_bytes() const { return 2 * dim() + Rows * row_.param_bytes(); }

  KVILT_HD void encode(const float* x, row_ref r) const {
    for (int phase = 0; phase < phases; ++phase)
      for (int i = 0; i < parts(phase); ++i) encode_part(x, r, phase, i);
  }
  /// Each channel's mean, then each row.
  static constexpr int phases = 2;
  KVILT_HD constexpr int parts(int phase) const { return phase == 0 ? dim() : Rows; }
  KVILT_HD void encode_part(const float* x, row_ref r, int phase, int part) const {
    KVILT_FENCE();
    if (phase == 0) {
      detail::write(r.params + 2 * part, mean(x + part));
    } else {
      float row[longest_dim];
      for (int d = 0; d < dim(); ++d) row[d] = x[part * dim() + d] - mean_at(r, d);
      row_.encode(row, row_at(r, part));
    }
  }
  template <int N>
  KVILT_HD void decode(row_ref r, int first, float (&out)[N]) const {
    row_.template decode<N>(row_at(r, r.row), first, out);
    for (int i = 0; i < N; ++i) out[i] += mean_at(r, first + i);
  }

 private:
  KVILT_HD constexpr int pitch() const { return int(round_up(row_.code_bytes(), 16)); }
  KVILT_HD constexpr row_ref row_at(row_ref r, int t) const {
    return {r.codes + t * pitch(), r.params + 2 * dim() + t * row_.param_bytes(), 0};
  }
  KVILT_HD static float mean_at(row_ref r, int d) { return from_fp16(detail::read<std::uint16_t>(r.params + 2 * d)); }

  /// The mean of a channel in fp16, each number no further from 0 than fp16 reaches. NOTE: a zero is positive: whether
  /// sums of subnormals keep their sign depends on whether these are flushed.
  KVILT_HD std::uint16_t mean(const float* channel) const {
    float sum = 0;
    for (int t = 0; t < Rows; ++t) {
      const float number = channel[t * dim()];
      const float reached = number > 65504.0f ? 65504.0f : number < -65504.0f ? -65504.0f : number;
      sum += is_nan(number) ? 0.0f : reached;
    }
    const std::uint16_t h = to_fp16(sum * (1.0f / Rows));
    return h == 0x8000u ? std::uint16_t(0) : h;
  }

  F row_;
};

}  // namespace kvilt::inline KVILT_ABI
