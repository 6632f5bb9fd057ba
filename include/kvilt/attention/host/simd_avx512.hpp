#pragma once

#include <kvilt/attention/host/tasks.hpp>

#if KVILT_X86
#include <immintrin.h>

/// \file
/// The host's kernels on vectors of 16 floats.
#define KVILT_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")))

#if !defined(__clang__)
#pragma GCC diagnostic push
// The intrinsics of g++ 12 read registers that they overwrite.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace kvilt::inline KVILT_ABI::detail::avx512 {

using f32 = __m512;
inline constexpr int lanes = 16;

KVILT_AVX512 inline f32 zero() {
  return _mm512_setzero_ps();
}
KVILT_AVX512 inline f32 splat(float x) {
  return _mm512_set1_ps(x);
}
KVILT_AVX512 inline f32 load(const float* p) {
  return _mm512_loadu_ps(p);
}
KVILT_AVX512 inline void store(float* p, f32 x) {
  _mm512_storeu_ps(p, x);
}
KVILT_AVX512 inline f32 add(f32 a, f32 b) {
  return _mm512_add_ps(a, b);
}
KVILT_AVX512 inline f32 subtract(f32 a, f32 b) {
  return _mm512_sub_ps(a, b);
}
KVILT_AVX512 inline f32 multiply(f32 a, f32 b) {
  return _mm512_mul_ps(a, b);
}
/// a b + c
KVILT_AVX512 inline f32 multiply_add(f32 a, f32 b, f32 c) {
  return _mm512_fmadd_ps(a, b, c);
}
/// The larger; `b` where `a` is NaN.
KVILT_AVX512 inline f32 larger(f32 a, f32 b) {
  return _mm512_max_ps(a, b);
}
KVILT_AVX512 inline bool any_nan(f32 x) {
  return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0;
}
/// `x` where `condition` is not 0, 0 elsewhere: whatever `x` holds there.
KVILT_AVX512 inline f32 where_not_zero(f32 condition, f32 x) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(condition, zero(), _CMP_NEQ_UQ), x);
}
/// 2^n e for n = `exponent`, a whole number from -126 to 0; 0 where `x` is below -87.
KVILT_AVX512 inline f32 scale_by_power(f32 e, f32 exponent, f32 x) {
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, splat(-87.0f), _CMP_NLT_UQ), e, exponent);
}
KVILT_AVX512 inline f32 nearest_whole(f32 x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/// The first `count` numbers; the rest are 0 and not read.
KVILT_AVX512 inline __mmask16 first_lanes(int count) {
  return __mmask16(count >= lanes ? 0xffff : (1 << count) - 1);
}
KVILT_AVX512 inline __m512i read_8(const unsigned char* p, int count) {  // bytes as 32-bit integers
  return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first_lanes(count), p));
}
KVILT_AVX512 inline __m256i read_16(const unsigned char* p, int count) {
  return _mm256_maskz_loadu_epi16(first_lanes(count), p);
}
KVILT_AVX512 inline __m256i read_signed_8(const unsigned char* p, int count) {  // bytes as signed 16-bit integers
  return _mm256_cvtepi8_epi16(_mm_maskz_loadu_epi8(first_lanes(count), p));
}

/// Numbers [i, i + count) of a row, count <= lanes; the other lanes are 0.
KVILT_AVX512 inline f32 read_fp32(const unsigned char* row, int i, int count) {
  return _mm512_maskz_loadu_ps(first_lanes(count), row + 4 * i);
}
KVILT_AVX512 inline f32 read_fp16(const unsigned char* row, int i, int count) {
  return _mm512_cvtph_ps(read_16(row + 2 * i, count));
}
KVILT_AVX512 inline f32 read_bf16(const unsigned char* row, int i, int count) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(read_16(row + 2 * i, count)), 16));
}
KVILT_AVX512 inline f32 read_e4m3(const unsigned char* row, int i, int count) {
  // NOTE: a half of 2^-8 times the value; the sign stands beside its place too.
  const __m256i half =
      _mm256_and_si256(_mm256_slli_epi16(read_signed_8(row + i, count), 7), _mm256_set1_epi16(short(0xbfff)));
  const __m256i largest = _mm256_set1_epi16(0x3f80);
  const __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(half, largest), largest);
  return _mm512_mask_mov_ps(multiply(_mm512_cvtph_ps(half), splat(256.0f)), nan, splat(__builtin_nanf("")));
}
KVILT_AVX512 inline f32 read_e5m2(const unsigned char* row, int i, int count) {  // a half's upper byte
  return _mm512_cvtph_ps(_mm256_slli_epi16(read_signed_8(row + i, count), 8));
}
KVILT_AVX512 inline f32 read_u8(const unsigned char* row, int i, int count) {
  return _mm512_cvtepi32_ps(read_8(row + i, count));
}
KVILT_AVX512 inline f32 read_u4(const unsigned char* row, int i, int count) {
  const __m128i packed = _mm_maskz_loadu_epi8(first_lanes(count >= lanes ? lanes / 2 : count / 2), row + i / 2);
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(packed, packed));
  return _mm512_cvtepi32_ps(
      _mm512_and_si512(_mm512_srlv_epi32(bytes, _mm512_set4_epi32(4, 0, 4, 0)), _mm512_set1_epi32(15)));
}

template <int Distance>
KVILT_AVX512 f32 swap_lanes(f32 x) {
  if constexpr (Distance == 8) return _mm512_shuffle_f32x4(x, x, 0x4e);
  if constexpr (Distance == 4) return _mm512_shuffle_f32x4(x, x, 0xb1);
  if constexpr (Distance == 2) return _mm512_permute_ps(x, 0x4e);
  if constexpr (Distance == 1) return _mm512_permute_ps(x, 0xb1);
}
KVILT_AVX512 inline float first_lane(f32 x) {
  return _mm512_cvtss_f32(x);
}

/// Lane i of the result is the sum of part[i]'s lanes, each added in the same order.
KVILT_AVX512 inline f32 sum_each(const f32 (&part)[lanes]) {
  f32 quarter[4];
  KVILT_UNROLL
  for (int j = 0; j < 4; ++j) {
    // Lanes i and i + 8, then i and i + 4: four sums of four lanes side by side.
    const f32 a = part[j], b = part[4 + j], c = part[8 + j], d = part[12 + j];
    const f32 ab = add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const f32 cd = add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    quarter[j] = add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  }
  const f32 even = add(_mm512_unpacklo_ps(quarter[0], quarter[1]), _mm512_unpackhi_ps(quarter[0], quarter[1]));
  const f32 odd = add(_mm512_unpacklo_ps(quarter[2], quarter[3]), _mm512_unpackhi_ps(quarter[2], quarter[3]));
  return add(_mm512_shuffle_ps(even, odd, 0x44), _mm512_shuffle_ps(even, odd, 0xee));
}

#define KVILT_TARGET KVILT_AVX512
#include <kvilt/attention/host/float_kernels.inl>
#undef KVILT_TARGET

}  // namespace kvilt::inline KVILT_ABI::detail::avx512

#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif
