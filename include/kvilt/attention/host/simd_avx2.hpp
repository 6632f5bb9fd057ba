#pragma once

#include <kvilt/attention/host/tasks.hpp>

#if KVILT_X86
#include <immintrin.h>

/// \file
/// The host's kernels on vectors of 8 floats.
#define KVILT_AVX2 __attribute__((target("avx2,fma,f16c")))

namespace kvilt::inline KVILT_ABI::detail::avx2 {

using f32 = __m256;
inline constexpr int lanes = 8;

KVILT_AVX2 inline f32 zero() {
  return _mm256_setzero_ps();
}
KVILT_AVX2 inline f32 splat(float x) {
  return _mm256_set1_ps(x);
}
KVILT_AVX2 inline f32 load(const float* p) {
  return _mm256_loadu_ps(p);
}
KVILT_AVX2 inline void store(float* p, f32 x) {
  _mm256_storeu_ps(p, x);
}
KVILT_AVX2 inline f32 add(f32 a, f32 b) {
  return _mm256_add_ps(a, b);
}
KVILT_AVX2 inline f32 subtract(f32 a, f32 b) {
  return _mm256_sub_ps(a, b);
}
KVILT_AVX2 inline f32 multiply(f32 a, f32 b) {
  return _mm256_mul_ps(a, b);
}
/// a b + c
KVILT_AVX2 inline f32 multiply_add(f32 a, f32 b, f32 c) {
  return _mm256_fmadd_ps(a, b, c);
}
/// The larger; `b` where `a` is NaN.
KVILT_AVX2 inline f32 larger(f32 a, f32 b) {
  return _mm256_max_ps(a, b);
}
KVILT_AVX2 inline bool any_nan(f32 x) {
  return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0;
}
/// `x` where `condition` is not 0, 0 elsewhere: whatever `x` holds there.
KVILT_AVX2 inline f32 where_not_zero(f32 condition, f32 x) {
  return _mm256_and_ps(_mm256_cmp_ps(condition, zero(), _CMP_NEQ_UQ), x);
}
KVILT_AVX2 inline f32 nearest_whole(f32 x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/// 2^n e for n = `exponent`, a whole number from -126 to 0; 0 where `x` is below -87.
KVILT_AVX2 inline f32 scale_by_power(f32 e, f32 exponent, f32 x) {
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(exponent), _mm256_set1_epi32(127)), 23);
  const f32 scaled = multiply(e, _mm256_castsi256_ps(power));
  return _mm256_and_ps(_mm256_cmp_ps(x, splat(-87.0f), _CMP_NLT_UQ), scaled);
}

/// Numbers [i, i + 8) of a row: rows are whole vectors.
KVILT_AVX2 inline f32 read_fp32(const unsigned char* row, int i, int) {
  return _mm256_loadu_ps(reinterpret_cast<const float*>(row + 4 * i));
}
KVILT_AVX2 inline __m128i read_128(const unsigned char* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
KVILT_AVX2 inline __m128i read_64(const unsigned char* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
KVILT_AVX2 inline f32 read_fp16(const unsigned char* row, int i, int) {
  return _mm256_cvtph_ps(read_128(row + 2 * i));
}
KVILT_AVX2 inline f32 read_bf16(const unsigned char* row, int i, int) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(read_128(row + 2 * i)), 16));
}
KVILT_AVX2 inline f32 from_fp8_bits(__m128i bytes, int mantissa_shift, int nan_from) {
  const __m128i wide = _mm_cvtepu8_epi16(bytes);
  const __m128i magnitude = _mm_and_si128(wide, _mm_set1_epi16(0x7f));
  const __m128i nan = _mm_cmpgt_epi16(magnitude, _mm_set1_epi16(short(nan_from - 1)));
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x80)), 8);
  const __m128i half = _mm_or_si128(_mm_slli_epi16(magnitude, mantissa_shift), sign);
  return _mm256_cvtph_ps(_mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7e00))));
}
KVILT_AVX2 inline f32 read_e4m3(const unsigned char* row, int i, int) {
  return multiply(from_fp8_bits(read_64(row + i), 7, 0x7f), splat(256.0f));
}
KVILT_AVX2 inline f32 read_e5m2(const unsigned char* row, int i, int) {
  return from_fp8_bits(read_64(row + i), 8, 0x7d);
}
KVILT_AVX2 inline f32 read_u8(const unsigned char* row, int i, int) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(read_64(row + i)));
}
KVILT_AVX2 inline f32 read_u4(const unsigned char* row, int i, int) {
  int word;
  __builtin_memcpy(&word, row + i / 2, sizeof(word));
  const __m256i shifted = _mm256_srlv_epi32(_mm256_set1_epi32(word), _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0));
  return _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(15)));
}

template <int Distance>
KVILT_AVX2 f32 swap_lanes(f32 x) {
  if constexpr (Distance == 4) return _mm256_permute2f128_ps(x, x, 0x01);
  if constexpr (Distance == 2) return _mm256_permute_ps(x, 0x4e);
  if constexpr (Distance == 1) return _mm256_permute_ps(x, 0xb1);
}
KVILT_AVX2 inline float first_lane(f32 x) {
  return _mm256_cvtss_f32(x);
}

/// Lane i of the result is the sum of part[i]'s lanes, each added in the same order.
KVILT_AVX2 inline f32 sum_each(const f32 (&part)[lanes]) {
  f32 half[4];
  KVILT_UNROLL
  for (int j = 0; j < 4; ++j)  // lanes i and i + 4: part[j] below, part[4 + j] above
    half[j] =
        add(_mm256_permute2f128_ps(part[j], part[4 + j], 0x20), _mm256_permute2f128_ps(part[j], part[4 + j], 0x31));
  const f32 even = add(_mm256_unpacklo_ps(half[0], half[1]), _mm256_unpackhi_ps(half[0], half[1]));
  const f32 odd = add(_mm256_unpacklo_ps(half[2], half[3]), _mm256_unpackhi_ps(half[2], half[3]));
  return add(_mm256_shuffle_ps(even, odd, 0x44), _mm256_shuffle_ps(even, odd, 0xee));
}

#define KVILT_TARGET KVILT_AVX2
#include <kvilt/attention/host/float_kernels.inl>
#undef KVILT_TARGET

}  // namespace kvilt::inline KVILT_ABI::detail::avx2
#endif
