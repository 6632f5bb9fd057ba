#pragma once

#include <kvilt/attention/host/tasks.hpp>

#if KVILT_AARCH64
#include <arm_neon.h>

/// \file
/// The host's kernels on pairs of vectors of 4 floats, which every AArch64 processor has.
namespace kvilt::inline KVILT_ABI::detail::neon {

using f32 = float32x4x2_t;
inline constexpr int lanes = 8;

inline f32 pair(float32x4_t low, float32x4_t high) {
  return {{low, high}};
}
inline f32 splat(float x) {
  return pair(vdupq_n_f32(x), vdupq_n_f32(x));
}
inline f32 zero() {
  return splat(0);
}
inline f32 load(const float* p) {
  return pair(vld1q_f32(p), vld1q_f32(p + 4));
}
inline void store(float* p, f32 x) {
  vst1q_f32(p, x.val[0]);
  vst1q_f32(p + 4, x.val[1]);
}
inline f32 add(f32 a, f32 b) {
  return pair(vaddq_f32(a.val[0], b.val[0]), vaddq_f32(a.val[1], b.val[1]));
}
inline f32 subtract(f32 a, f32 b) {
  return pair(vsubq_f32(a.val[0], b.val[0]), vsubq_f32(a.val[1], b.val[1]));
}
inline f32 multiply(f32 a, f32 b) {
  return pair(vmulq_f32(a.val[0], b.val[0]), vmulq_f32(a.val[1], b.val[1]));
}
/// a b + c
inline f32 multiply_add(f32 a, f32 b, f32 c) {
  return pair(vfmaq_f32(c.val[0], a.val[0], b.val[0]), vfmaq_f32(c.val[1], a.val[1], b.val[1]));
}
inline float32x4_t larger(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
/// The larger; `b` where `a` is NaN.
inline f32 larger(f32 a, f32 b) {
  return pair(larger(a.val[0], b.val[0]), larger(a.val[1], b.val[1]));
}
inline bool any_nan(f32 x) {
  return vminvq_u32(vandq_u32(vceqq_f32(x.val[0], x.val[0]), vceqq_f32(x.val[1], x.val[1]))) == 0;
}
/// The bits of `x` where the mask has some.
inline float32x4_t masked(uint32x4_t mask, float32x4_t x) {
  return vreinterpretq_f32_u32(vandq_u32(mask, vreinterpretq_u32_f32(x)));
}
inline float32x4_t where_not_zero(float32x4_t condition, float32x4_t x) {
  return masked(vmvnq_u32(vceqzq_f32(condition)), x);
}
/// `x` where `condition` is not 0, 0 elsewhere: whatever `x` holds there.
inline f32 where_not_zero(f32 condition, f32 x) {
  return pair(where_not_zero(condition.val[0], x.val[0]), where_not_zero(condition.val[1], x.val[1]));
}
inline f32 nearest_whole(f32 x) {
  return pair(vrndnq_f32(x.val[0]), vrndnq_f32(x.val[1]));
}
inline float32x4_t scale_by_power(float32x4_t e, float32x4_t exponent, float32x4_t x) {
  const int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(exponent), vdupq_n_s32(127)), 23);
  const uint32x4_t too_small = vcltq_f32(x, vdupq_n_f32(-87.0f));
  return masked(vmvnq_u32(too_small), vmulq_f32(e, vreinterpretq_f32_s32(power)));
}
/// 2^n e for n = `exponent`, a whole number from -126 to 0; 0 where `x` is below -87.
inline f32 scale_by_power(f32 e, f32 exponent, f32 x) {
  return pair(scale_by_power(e.val[0], exponent.val[0], x.val[0]), scale_by_power(e.val[1], exponent.val[1], x.val[1]));
}

inline f32 from_halves(uint16x8_t bits) {
  const float16x8_t half = vreinterpretq_f16_u16(bits);
  return pair(vcvt_f32_f16(vget_low_f16(half)), vcvt_high_f32_f16(half));
}
inline f32 from_integers(uint16x8_t codes) {
  return pair(vcvtq_f32_u32(vmovl_u16(vget_low_u16(codes))), vcvtq_f32_u32(vmovl_high_u16(codes)));
}
inline uint16x8_t read_16(const unsigned char* p) {
  return vreinterpretq_u16_u8(vld1q_u8(p));
}

/// Numbers [i, i + 8) of a row: rows are whole vectors.
inline f32 read_fp32(const unsigned char* row, int i, int) {
  return pair(vreinterpretq_f32_u8(vld1q_u8(row + 4 * i)), vreinterpretq_f32_u8(vld1q_u8(row + 4 * i + 16)));
}
inline f32 read_fp16(const unsigned char* row, int i, int) {
  return from_halves(read_16(row + 2 * i));
}
inline f32 read_bf16(const unsigned char* row, int i, int) {
  const uint16x8_t bits = read_16(row + 2 * i);
  return pair(vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16)),
              vreinterpretq_f32_u32(vshll_high_n_u16(bits, 16)));
}
inline f32 read_e4m3(const unsigned char* row, int i, int) {
  const uint16x8_t code = vmovl_u8(vld1_u8(row + i)), magnitude = vandq_u16(code, vdupq_n_u16(0x7f));
  const uint16x8_t sign = vshlq_n_u16(vandq_u16(code, vdupq_n_u16(0x80)), 8);
  const uint16x8_t nan = vandq_u16(vceqq_u16(magnitude, vdupq_n_u16(0x7f)), vdupq_n_u16(0x7e00));
  // NOTE: a half of 2^-8 times the value.
  return multiply(from_halves(vorrq_u16(vorrq_u16(vshlq_n_u16(magnitude, 7), sign), nan)), splat(256.0f));
}
inline f32 read_e5m2(const unsigned char* row, int i, int) {  // a half's upper byte
  return from_halves(vshll_n_u8(vld1_u8(row + i), 8));
}
inline f32 read_u8(const unsigned char* row, int i, int) {
  return from_integers(vmovl_u8(vld1_u8(row + i)));
}
inline f32 read_u4(const unsigned char* row, int i, int) {
  std::uint32_t word;
  __builtin_memcpy(&word, row + i / 2, sizeof(word));
  const uint8x8_t packed = vcreate_u8(word);
  return from_integers(vmovl_u8(vzip1_u8(vand_u8(packed, vdup_n_u8(15)), vshr_n_u8(packed, 4))));
}

template <int Distance>
f32 swap_lanes(f32 x) {
  if constexpr (Distance == 4) return pair(x.val[1], x.val[0]);
  if constexpr (Distance == 2) return pair(vextq_f32(x.val[0], x.val[0], 2), vextq_f32(x.val[1], x.val[1], 2));
  if constexpr (Distance == 1) return pair(vrev64q_f32(x.val[0]), vrev64q_f32(x.val[1]));
}
inline float first_lane(f32 x) {
  return vgetq_lane_f32(x.val[0], 0);
}

/// Lane i of the result is the sum of part[i]'s lanes, each added in the same order.
inline f32 sum_each(const f32 (&part)[lanes]) {
  float32x4_t half[lanes];
  KVILT_UNROLL
  for (int i = 0; i < lanes; ++i) half[i] = vaddq_f32(part[i].val[0], part[i].val[1]);
  return pair(vpaddq_f32(vpaddq_f32(half[0], half[1]), vpaddq_f32(half[2], half[3])),
              vpaddq_f32(vpaddq_f32(half[4], half[5]), vpaddq_f32(half[6], half[7])));
}

#define KVILT_TARGET
#include <kvilt/attention/host/float_kernels.inl>
#undef KVILT_TARGET

}  // namespace kvilt::inline KVILT_ABI::detail::neon
#endif
