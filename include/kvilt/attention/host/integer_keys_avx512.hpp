#pragma once

#include <kvilt/attention/host/simd_avx512.hpp>

#if KVILT_X86
#if !defined(__clang__)
#pragma GCC diagnostic push
// The intrinsics of g++ 12 read registers that they overwrite.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace kvilt::inline KVILT_ABI::detail::avx512 {

/// \file
/// Products with 8-bit and 4-bit keys by integer dot products (VNNI) of 16 bits: queries are integers of 14 bits and a
/// sign under a scale of their own, codes are widened where they are multiplied. Sums are exact, so their order is no
/// matter; what the 14 bits cost is below 1/64 of what the codes themselves have cost.

inline constexpr int integer_limit = host_tile::integer_limit;

/// Where number i of a query stands among its codes: 4-bit keys give the even numbers, then the odd ones.
constexpr int code_place(code_kind kind, int i, int dim) {
  return kind == code_kind::u4 ? i % 2 * (dim / 2) + i / 2 : i;
}

/// codes: [dim], in their places.
KVILT_AVX512 inline void quantise_query(code_kind kind, const float* q, int dim, std::int16_t* codes, float& scale,
                                        int& sum) {
  float most = 0;
  bool finite = true;
  for (int i = 0; i < dim; ++i) {
    const float magnitude = __builtin_fabsf(q[i]);
    finite &= magnitude <= 3.4028235e38f;
    most = magnitude > most ? magnitude : most;
  }
  // NOTE: a row that is not finite has no finite scores.
  scale = finite ? most / integer_limit : __builtin_nanf("");
  const float inverse = finite && scale > 1.2e-38f ? 1 / scale : 0.0f;
  sum = 0;
  for (int i = 0; i < dim; i += lanes) {
    const __m512i value =
        _mm512_maskz_cvtps_epi32(first_lanes(finite ? dim - i : 0), multiply(load(q + i), splat(inverse)));
    alignas(32) std::int16_t numbers[lanes];
    _mm256_store_si256(reinterpret_cast<__m256i*>(numbers), _mm512_cvtepi32_epi16(value));
    for (int j = 0; j < lanes && i + j < dim; ++j) {
      codes[code_place(kind, i + j, dim)] = numbers[j];
      sum += numbers[j];
    }
  }
}

/// 32 bytes as 16-bit numbers, or the `bytes` that are left of a row that ends before; the others are 0.
template <bool Whole>
KVILT_AVX512 KVILT_ALWAYS_INLINE __m512i widened(const unsigned char* p, int bytes) {
  if constexpr (Whole) return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(bytes >= 32 ? ~__mmask32(0) : (__mmask32(1) << bytes) - 1, p));
}

/// Adds to sum[key][row], by lane, the products of `Rows` queries and `Keys` keys over 32 bytes of a key from `byte` on.
template <code_kind Kind, bool Whole, int Rows, int Keys>
KVILT_AVX512 KVILT_ALWAYS_INLINE void add_integer_products(const score_task& task, int row, int t, int byte,
                                                           __m512i (&sum)[Keys][Rows]) {
  constexpr bool halves = Kind == code_kind::u4;  // two numbers to a byte
  const int bytes = halves ? task.dim / 2 : task.dim;
  __m512i even[Keys], odd[Keys];
  KVILT_UNROLL
  for (int k = 0; k < Keys; ++k) {
    if (row == 0) fetch_ahead(task.ahead, t + k, byte);
    const __m512i codes = widened<Whole>(task.rows[t + k] + byte, bytes - byte);
    even[k] = halves ? _mm512_and_si512(codes, _mm512_set1_epi16(15)) : codes;
    if constexpr (halves) odd[k] = _mm512_srli_epi16(codes, 4);
  }
  KVILT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    const std::int16_t* const q = task.q_codes + (row + r) * task.q_stride + byte;
    KVILT_UNROLL
    for (int k = 0; k < Keys; ++k) {
      sum[k][r] = _mm512_dpwssd_epi32(sum[k][r], even[k], _mm512_loadu_si512(q));
      if constexpr (halves) sum[k][r] = _mm512_dpwssd_epi32(sum[k][r], odd[k], _mm512_loadu_si512(q + bytes));
    }
  }
}

/// Lane i of the result is the sum of part[i]'s lanes.
KVILT_AVX512 inline __m512i sum_each(const __m512i (&part)[lanes]) {
  __m512i quarter[4];
  KVILT_UNROLL
  for (int j = 0; j < 4; ++j) {
    const __m512i a = part[j], b = part[4 + j], c = part[8 + j], d = part[12 + j];
    const __m512i ab = _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
    const __m512i cd = _mm512_add_epi32(_mm512_shuffle_i32x4(c, d, 0x44), _mm512_shuffle_i32x4(c, d, 0xee));
    quarter[j] = _mm512_add_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
  }
  const __m512i even =
      _mm512_add_epi32(_mm512_unpacklo_epi32(quarter[0], quarter[1]), _mm512_unpackhi_epi32(quarter[0], quarter[1]));
  const __m512i odd =
      _mm512_add_epi32(_mm512_unpacklo_epi32(quarter[2], quarter[3]), _mm512_unpackhi_epi32(quarter[2], quarter[3]));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(even, odd), _mm512_unpackhi_epi64(even, odd));
}

/// What turns sums into scores, for the rows of a vector of results: [row][key].
struct integer_scale {
  alignas(64) int offset[lanes];
  alignas(64) float scale[lanes];
};
template <int Rows>
KVILT_AVX512 integer_scale scale_of(const score_task& task, int row) {
  integer_scale s;
  for (int i = 0; i < lanes; ++i) {
    const int r = row + i * Rows / lanes;
    // NOTE: the sum of offset codes may wrap; without the offset it fits.
    s.offset[i] = int(unsigned(task.offset) * unsigned(task.q_sum[r]));
    s.scale[i] = task.q_scale[r];
  }
  return s;
}

/// Products of `Rows` query rows with the keys of a tile, of `Bytes` bytes each, 0: any number; out[r][t] for t in
/// [first, last) and some around.
template <code_kind Kind, int Rows, int Bytes>
KVILT_AVX512 void multiply_integer_keys(const score_task& task, int row) {
  constexpr int tokens = lanes / Rows;         // keys of a vector of results
  constexpr int together = Rows == 2 ? 4 : 2;  // that share loads of q
  [[maybe_unused]] const int bytes = Kind == code_kind::u4 ? task.dim / 2 : task.dim;
  const integer_scale scale = scale_of<Rows>(task, row);
  for (int t = task.first / tokens * tokens; t < task.last; t += tokens) {
    __m512i part[lanes];  // of query row i / tokens and key t + i % tokens
    KVILT_UNROLL
    for (int i = 0; i < tokens; i += together) {
      __m512i sum[together][Rows];
      KVILT_UNROLL
      for (int j = 0; j < together * Rows; ++j) sum[j / Rows][j % Rows] = _mm512_setzero_si512();
      if constexpr (Bytes > 0) {
        KVILT_UNROLL
        for (int b = 0; b < Bytes; b += 32) add_integer_products<Kind, true>(task, row, t + i, b, sum);
      } else {
        for (int b = 0; b < bytes; b += 32) add_integer_products<Kind, false>(task, row, t + i, b, sum);
      }
      KVILT_UNROLL
      for (int j = 0; j < together * Rows; ++j) part[j % Rows * tokens + i + j / Rows] = sum[j / Rows][j % Rows];
    }
    const __m512i sums = _mm512_sub_epi32(sum_each(part), _mm512_load_si512(scale.offset));
    float products[lanes];
    store(products, multiply(_mm512_cvtepi32_ps(sums), load(scale.scale)));
    for (int r = 0; r < Rows; ++r)
      __builtin_memcpy(task.out + (row + r) * host_tile::tokens + t, products + r * tokens, sizeof(float) * tokens);
  }
}

template <code_kind Kind, int Bytes>
KVILT_AVX512 void multiply_integer_rows(const score_task& task) {
  int row = 0;
  for (; row + 4 <= task.count; row += 4) multiply_integer_keys<Kind, 4, Bytes>(task, row);
  for (; row + 2 <= task.count; row += 2) multiply_integer_keys<Kind, 2, Bytes>(task, row);
  if (row < task.count) multiply_integer_keys<Kind, 1, Bytes>(task, row);
}

template <code_kind Kind>
KVILT_AVX512 void multiply_integer_keys(const score_task& task) {
  const int bytes = Kind == code_kind::u4 ? task.dim / 2 : task.dim;
  if (bytes == 64) return multiply_integer_rows<Kind, 64>(task);
  if (bytes == 128) return multiply_integer_rows<Kind, 128>(task);
  multiply_integer_rows<Kind, 0>(task);
}

}  // namespace kvilt::inline KVILT_ABI::detail::avx512

#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif
