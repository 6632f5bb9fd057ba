#pragma once

#include <kvilt/format/format.hpp>

/// \file
/// What integer formats with a zero share: the scale and zero of some numbers, and how codes of a few bits lie in bytes.

namespace kvilt::inline KVILT_ABI::detail {

/// The smallest and the largest of some numbers, and whether one of them is NaN; of none to begin with.
struct number_range {
  float low = float_of(0x7f800000u), high = float_of(0xff800000u);
  bool nan = false;

  KVILT_HD constexpr void add(float x) {
    low = x < low ? x : low;
    high = x > high ? x : high;
    nan |= is_nan(x);
  }
  KVILT_HD constexpr void add(const number_range& others) {
    low = others.low < low ? others.low : low;
    high = others.high > high ? others.high : high;
    nan |= others.nan;
  }
};

/// Codes round((x - z) / s) in [0, Last] of numbers that share s and z, both in fp16. z is the smallest x rounded down,
/// so numbers far from zero still span their codes.
template <int Last>
class affine {
 public:
  /// Of x[0], x[stride], ... x[(n - 1) stride]. NaN where one of them is.
  KVILT_HD affine(const float* x, int n, int stride = 1) : affine(range_of(x, n, stride)) {}
  KVILT_HD explicit affine(const number_range& r) {
    zero = r.nan ? std::uint16_t(0x7fff) : rounded_down(clamped(r.low));
    z_ = from_fp16(zero);
    scale = stored_scale(r.nan ? z_ : clamped(r.high) - z_, float(Last));
    inverse_ = divide(1.0f, from_fp16(scale));
  }

  KVILT_HD unsigned code(float x) const { return unsigned(nearest_code((clamped(x) - z_) * inverse_, 0, Last)); }

  std::uint16_t scale, zero;

 private:
  KVILT_HD static constexpr number_range range_of(const float* x, int n, int stride) {
    number_range r;
    for (int i = 0; i < n; ++i) r.add(x[i * stride]);
    return r;
  }
  /// Beyond what fp16 zeros and scales can say, numbers saturate.
  KVILT_HD static constexpr float clamped(float x) {
    return x > Last * 65504.0f ? Last * 65504.0f : x < -65504.0f ? -65504.0f : x;
  }
  KVILT_HD static constexpr std::uint16_t rounded_down(float x) {
    if (magnitude_bits(x) < 0x00800000u) return 0;  // fp32 subnormals: the same whether they are flushed or not
    const std::uint16_t h = to_fp16_saturating(x);
    const std::uint16_t below = h & 0x8000u ? std::uint16_t(h + 1) : h ? std::uint16_t(h - 1) : std::uint16_t(0x8001);
    return from_fp16(h) > x && (below & 0x7fffu) < 0x7c00u ? below : h;
  }

  float z_, inverse_;
};

/// Eight codes of 1, 2 or 4 bits, the first in the lowest bits, as eight bytes, the first lowest.
template <int Bits>
KVILT_HD constexpr std::uint64_t spread(std::uint32_t packed) {
  static_assert(Bits == 1 || Bits == 2 || Bits == 4);
  constexpr std::uint64_t fours = Bits == 4   ? 0x0000ffff0000ffffu
                                  : Bits == 2 ? 0x000000ff000000ffu
                                              : 0x0000000f0000000fu;
  constexpr std::uint64_t pairs = Bits == 4   ? 0x00ff00ff00ff00ffu
                                  : Bits == 2 ? 0x000f000f000f000fu
                                              : 0x0003000300030003u;
  constexpr std::uint64_t single = Bits == 4   ? 0x0f0f0f0f0f0f0f0fu
                                   : Bits == 2 ? 0x0303030303030303u
                                               : 0x0101010101010101u;
  std::uint64_t x = packed;
  x = (x | x << (32 - 4 * Bits)) & fours;
  x = (x | x << (16 - 2 * Bits)) & pairs;
  return (x | x << (8 - Bits)) & single;
}
/// Its inverse: the low `Bits` bits of each byte.
template <int Bits>
KVILT_HD constexpr std::uint32_t gathered(std::uint64_t bytes) {
  std::uint32_t packed = 0;
  for (int i = 0; i < 8; ++i) packed |= (std::uint32_t(bytes >> 8 * i) & ((1u << Bits) - 1)) << Bits * i;
  return packed;
}

/// Where the codes of one row lie. 4 and 2 bits: one after another, the first in the lowest bits of the first byte.
/// 3 bits: a plane of the low 2 bits of each code, laid out so, and after it a plane of the high bits: both unpack by
/// shifts and masks of whole words, as codes that straddle bytes do not.
template <int Bits>
struct code_row {
  static_assert(Bits >= 2 && Bits <= 4);

  KVILT_HD static constexpr int bytes(int dim) { return dim * Bits / 8; }

  /// Eight codes from `first` on, a byte each, the first lowest.
  KVILT_HD static std::uint64_t read8(const unsigned char* row, int dim, int first) {
    if constexpr (Bits == 4)
      return spread<4>(read<std::uint32_t>(row + first / 2));
    else if constexpr (Bits == 2)
      return spread<2>(read<std::uint16_t>(row + first / 4));
    else
      return spread<2>(read<std::uint16_t>(row + first / 4)) | spread<1>(row[dim / 4 + first / 8]) << 2;
  }
  KVILT_HD static void write8(unsigned char* row, int dim, int first, std::uint64_t codes) {
    if constexpr (Bits == 4) {
      write(row + first / 2, gathered<4>(codes));
    } else {
      write(row + first / 4, std::uint16_t(gathered<2>(codes)));
      if constexpr (Bits == 3) row[dim / 4 + first / 8] = static_cast<unsigned char>(gathered<1>(codes >> 2));
    }
  }
};

}  // namespace kvilt::inline KVILT_ABI::detail
