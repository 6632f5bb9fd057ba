#pragma once

#include <kvilt/core/types.hpp>

/// \file
/// 16-bit and 8-bit floating point by bit arithmetic: constexpr, round to nearest even, bit-equal to the CUDA
/// intrinsics named at each function. NOTE: no step makes an fp32 subnormal of a number that matters, so results stay
/// the same under flush-to-zero (nvcc's -use_fast_math).

namespace kvilt::inline KVILT_ABI {

/// Element types of callers' tensors. A `__half*` or `__nv_bfloat16*` may be cast to these: they are the same bits.
struct KVILT_MAY_ALIAS float16 {
  std::uint16_t bits;
};
struct KVILT_MAY_ALIAS bfloat16 {
  std::uint16_t bits;
};

KVILT_HD constexpr std::uint32_t bits_of(float x) {
  return __builtin_bit_cast(std::uint32_t, x);
}
KVILT_HD constexpr float float_of(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
KVILT_HD constexpr std::uint32_t magnitude_bits(float x) {
  return bits_of(x) & 0x7fffffffu;
}
KVILT_HD constexpr bool is_nan(float x) {
  return magnitude_bits(x) > 0x7f800000u;
}

namespace detail {

/// Widens a small float of `Mantissa` bits whose exponent and mantissa lie in the low bits of `magnitude`.
/// `Bias` is the difference of the exponents' biases. Subnormals become normal by one exact subtraction.
template <int Mantissa, std::uint32_t Bias>
KVILT_HD constexpr std::uint32_t widen(std::uint32_t magnitude) {
  const std::uint32_t normal = (magnitude << (23 - Mantissa)) + (Bias << 23);
  const std::uint32_t subnormal = bits_of(float_of(normal + (1u << 23)) - float_of((Bias + 1) << 23));
  return magnitude >> Mantissa ? normal : subnormal;
}

/// Rounds the magnitude of a finite float to a small float of `Mantissa` bits; the caller has handled what is too
/// large.
template <int Mantissa, std::uint32_t Bias>
KVILT_HD constexpr std::uint32_t narrow(std::uint32_t u) {
  constexpr int shift = 23 - Mantissa;
  constexpr std::uint32_t magic = (Bias + 1 + shift) << 23;  // its unit in the last place is the smallest subnormal
  const std::uint32_t subnormal = bits_of(float_of(u) + float_of(magic)) - magic;
  const std::uint32_t normal = (u + ((1u << (shift - 1)) - 1) + (u >> shift & 1) - (Bias << 23)) >> shift;
  return u < (Bias + 1) << 23 ? subnormal : normal;
}

}  // namespace detail

/// IEEE binary16. Overflows to infinity; NaN becomes 0x7fff (as `__float2half_rn`).
KVILT_HD constexpr std::uint16_t to_fp16(float x) {
  const std::uint32_t sign = bits_of(x) >> 16 & 0x8000u, u = magnitude_bits(x);
  if (u > 0x7f800000u) return 0x7fff;
  if (u >= 0x47800000u) return std::uint16_t(sign | 0x7c00u);
  return std::uint16_t(sign | detail::narrow<10, 112>(u));
}

/// Exact (as `__half2float`, except that NaN payloads are kept).
KVILT_HD constexpr float from_fp16(std::uint16_t h) {
  const std::uint32_t sign = std::uint32_t(h & 0x8000u) << 16, u = h & 0x7fffu;
  const std::uint32_t finite = detail::widen<10, 112>(u);
  return float_of(sign | (u >= 0x7c00u ? 0x7f800000u | (u & 0x3ffu) << 13 : finite));
}

/// bfloat16. Overflows to infinity; NaN becomes 0x7fff (as `__float2bfloat16_rn`).
KVILT_HD constexpr std::uint16_t to_bf16(float x) {
  const std::uint32_t u = bits_of(x);
  return is_nan(x) ? std::uint16_t(0x7fff) : std::uint16_t((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}
KVILT_HD constexpr float from_bf16(std::uint16_t h) {
  return float_of(std::uint32_t(h) << 16);
}

/// FP8 E4M3 (finite, 448 is the largest). Saturates, infinity too; NaN becomes 0x7f (as `__nv_cvt_float_to_fp8` with
/// `__NV_SATFINITE`). P. Micikevicius et al., "FP8 formats for deep learning", 2022.
KVILT_HD constexpr std::uint8_t to_e4m3(float x) {
  const std::uint32_t sign = bits_of(x) >> 24 & 0x80u, u = magnitude_bits(x);
  if (u > 0x7f800000u) return 0x7f;
  if (u > 0x43e00000u) return std::uint8_t(sign | 0x7eu);
  return std::uint8_t(sign | detail::narrow<3, 120>(u));
}
KVILT_HD constexpr float from_e4m3(std::uint8_t c) {
  const std::uint32_t sign = std::uint32_t(c & 0x80u) << 24, u = c & 0x7fu;
  const std::uint32_t finite = detail::widen<3, 120>(u);
  return float_of(sign | (u == 0x7fu ? 0x7fc00000u : finite));
}

/// FP8 E5M2 (57344 is the largest finite). Saturates, infinity too; NaN becomes 0x7f (as `__nv_cvt_float_to_fp8`).
KVILT_HD constexpr std::uint8_t to_e5m2(float x) {
  const std::uint32_t sign = bits_of(x) >> 24 & 0x80u, u = magnitude_bits(x);
  if (u > 0x7f800000u) return 0x7f;
  if (u > 0x47600000u) return std::uint8_t(sign | 0x7bu);
  return std::uint8_t(sign | detail::narrow<2, 112>(u));
}
KVILT_HD constexpr float from_e5m2(std::uint8_t c) {
  return from_fp16(std::uint16_t(c << 8));
}

/// Finite overflow saturates at 65504; infinity and NaN stay what they are. What the cache stores.
KVILT_HD constexpr std::uint16_t to_fp16_saturating(float x) {
  const std::uint16_t h = to_fp16(x);
  const bool overflowed = (h & 0x7fffu) == 0x7c00u && magnitude_bits(x) != 0x7f800000u;
  return overflowed ? std::uint16_t((h & 0x8000u) | 0x7bffu) : h;
}
KVILT_HD constexpr std::uint16_t to_bf16_saturating(float x) {
  const std::uint16_t h = to_bf16(x);
  const bool overflowed = (h & 0x7fffu) == 0x7f80u && magnitude_bits(x) != 0x7f800000u;
  return overflowed ? std::uint16_t((h & 0x8000u) | 0x7f7fu) : h;
}

/// Reads and writes one element of a caller's tensor.
KVILT_HD constexpr float load(float x) {
  return x;
}
KVILT_HD constexpr float load(float16 x) {
  return from_fp16(x.bits);
}
KVILT_HD constexpr float load(bfloat16 x) {
  return from_bf16(x.bits);
}
KVILT_HD constexpr void store(float& to, float x) {
  to = x;
}
KVILT_HD constexpr void store(float16& to, float x) {
  to.bits = to_fp16(x);
}
KVILT_HD constexpr void store(bfloat16& to, float x) {
  to.bits = to_bf16(x);
}

}  // namespace kvilt::inline KVILT_ABI
