#pragma once

#include <kvilt/format/affine.hpp>

namespace kvilt::inline KVILT_ABI {
namespace detail {

/// Tile formats for keys: `Rows` tokens by `dim` channels, asymmetric, s and z of each channel over the tile.
/// Codes: the rows one after another, each as a row of a token format of as many bits. Params: scales [dim], then zeros
/// [dim], in fp16.
template <int Bits, int D, int Rows>
struct affine_channels : extent<D> {
  using extent<D>::extent;
  static_assert(Rows >= 2 && Rows <= 64, "kvilt: a tile has 2 to 64 tokens");
  static constexpr int rows = Rows;

  KVILT_HD constexpr int dim() const { return this->get(); }
  KVILT_HD constexpr int row_bytes() const { return code_row<Bits>::bytes(dim()); }
  KVILT_HD constexpr int code_bytes() const { return Rows * row_bytes(); }
  KVILT_HD constexpr int param_bytes() const { return 4 * dim(); }

  KVILT_HD void encode(const float* x, row_ref r) const {
    for (int i = 0; i < parts(0); ++i) encode_part(x, r, 0, i);
  }
  /// Eight channels each.
  static constexpr int phases = 1;
  KVILT_HD constexpr int parts(int) const { return dim() / 8; }
  KVILT_HD void encode_part(const float* x, row_ref r, int, int part) const {
    KVILT_FENCE();
    const int first = 8 * part;
    std::uint64_t codes[Rows] = {};
    for (int i = 0; i < 8; ++i) {
      const float* channel = x + first + i;
      const affine<(1 << Bits) - 1> of(channel, Rows, dim());
      write(r.params + 2 * (first + i), of.scale);
      write(r.params + 2 * (dim() + first + i), of.zero);
      for (int t = 0; t < Rows; ++t) codes[t] |= std::uint64_t(of.code(channel[t * dim()])) << 8 * i;
    }
    for (int t = 0; t < Rows; ++t) code_row<Bits>::write8(r.codes + t * row_bytes(), dim(), first, codes[t]);
  }
  template <int N>
  KVILT_HD void decode(row_ref r, int first, float (&out)[N]) const {
    std::uint16_t scales[N], zeros[N];
    __builtin_memcpy(scales, r.params + 2 * first, sizeof(scales));
    __builtin_memcpy(zeros, r.params + 2 * (dim() + first), sizeof(zeros));
    unsigned char codes[N];
    const unsigned char* row = r.codes + r.row * row_bytes();
    for (int i = 0; i < N; i += 8) write(codes + i, code_row<Bits>::read8(row, dim(), first + i));
    for (int i = 0; i < N; ++i) out[i] = from_fp16(scales[i]) * float(int(codes[i])) + from_fp16(zeros[i]);
  }
};

}  // namespace detail

/// INT4 by channel: a scale and a zero of each channel over `Rows` tokens, so a channel that is large in every token, as
/// some of K's are, costs nothing. For K; V's outliers lie in tokens (Z. Liu et al., "KIVI", 2024). Its tokens gather
/// in a 16-bit tail.
template <int D = dynamic, int Rows = 32>
struct q4_channel : detail::affine_channels<4, D, Rows> {
  using detail::affine_channels<4, D, Rows>::affine_channels;
  static constexpr const char* name() { return detail::tile_name<"q4_channel", Rows, 32>(); }
};

/// INT2 by channel, alike.
template <int D = dynamic, int Rows = 32>
struct q2_channel : detail::affine_channels<2, D, Rows> {
  using detail::affine_channels<2, D, Rows>::affine_channels;
  static constexpr const char* name() { return detail::tile_name<"q2_channel", Rows, 32>(); }
};

static_assert(kv_format<q4_channel<128>> && kv_format<q4_channel<>>);
static_assert(kv_format<q2_channel<128>> && kv_format<q2_channel<>>);

}  // namespace kvilt::inline KVILT_ABI
