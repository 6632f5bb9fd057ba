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
/// Products with 8-bit and 4-bit keys by integer dot products (VNNI). Queries and weights are integers of 14 bits, a
/// scale each of its own: 128 high + low, two products of bytes. Sums are exact, so their order is no matter; what the
/// 14 bits cost is below 1/64 of what the codes themselves have cost.

inline constexpr int integer_limit = host_tile::integer_limit;

/// high and low of 16 integers, as the lowest bytes: value = 128 high + low, |low| <= 64.
KVILT_AVX512 inline void split(__m512i value, __m512i& high, __m512i& low) {
  high = _mm512_srai_epi32(_mm512_add_epi32(value, _mm512_set1_epi32(64)), 7);
  low = _mm512_sub_epi32(value, _mm512_slli_epi32(high, 7));
}

/// Where number i of a query stands among its codes: 4-bit keys give the even numbers, then the odd ones.
constexpr int code_place(code_kind kind, int i, int dim) {
  return kind == code_kind::u4 ? i % 2 * (dim / 2) + i / 2 : i;
}

/// codes: [dim] high bytes, then [dim] low ones.
KVILT_AVX512 inline void quantise_query(code_kind kind, const float* q, int dim, signed char* codes, float& scale,
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
    __m512i high, low;
    split(value, high, low);
    alignas(64) signed char bytes[2][lanes];
    _mm_store_si128(reinterpret_cast<__m128i*>(bytes[0]), _mm512_cvtepi32_epi8(high));
    _mm_store_si128(reinterpret_cast<__m128i*>(bytes[1]), _mm512_cvtepi32_epi8(low));
    for (int j = 0; j < lanes && i + j < dim; ++j) {
      codes[code_place(kind, i + j, dim)] = bytes[0][j];
      codes[dim + code_place(kind, i + j, dim)] = bytes[1][j];
      sum += 128 * bytes[0][j] + bytes[1][j];
    }
  }
}

/// 16 x 16 transposed 32-bit words: x[i] word j <-> x[j] word i.
KVILT_AVX512 inline void transpose(__m512i (&x)[16]) {
  __m512i y[16];
  KVILT_UNROLL
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  KVILT_UNROLL
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
  KVILT_UNROLL
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
  }
  KVILT_UNROLL
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
    x[i + 4] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0x88);
    x[i + 12] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0xdd);
  }
}

inline constexpr int tile_tokens = host_tile::tokens;

/// 64 bytes of a row, or the `bytes` that are left of it where it does not end on a line.
template <bool Whole>
KVILT_AVX512 KVILT_ALWAYS_INLINE __m512i read_line(const unsigned char* p, int bytes) {
  if constexpr (Whole) return _mm512_loadu_si512(p);
  return _mm512_maskz_loadu_epi8(bytes >= 64 ? ~__mmask64(0) : (__mmask64(1) << bytes) - 1, p);
}

/// Four codes of each of the tile's keys as a word, in the order of a query's codes: words [dim / 4][tokens].
template <code_kind Kind, bool Whole>
KVILT_AVX512 void gather_keys(const score_task& task, int* words) {
  constexpr int per_word = Kind == code_kind::u4 ? 8 : 4;  // codes of a word as it lies
  const __m512i nibble = _mm512_set1_epi8(15);
  for (int t = 0; t < tile_tokens; t += 16) {
    for (int w = 0; w < task.dim / per_word; w += 16) {
      const int count = Whole || task.dim / per_word - w >= 16 ? 16 : task.dim / per_word - w;
      __m512i x[16];
      KVILT_UNROLL
      for (int i = 0; i < 16; ++i) {
        fetch_ahead(task.ahead, t + i, 4 * w);
        x[i] = read_line<Whole>(task.rows[t + i] + 4 * w, 4 * count);
      }
      transpose(x);
      for (int i = 0; i < count; ++i) {
        if constexpr (Kind == code_kind::u4) {
          int* const to = words + (w + i) * tile_tokens + t;
          _mm512_storeu_si512(to, _mm512_and_si512(x[i], nibble));
          _mm512_storeu_si512(to + task.dim / 8 * tile_tokens, _mm512_and_si512(_mm512_srli_epi32(x[i], 4), nibble));
        } else {
          _mm512_storeu_si512(words + (w + i) * tile_tokens + t, x[i]);
        }
      }
    }
  }
}

/// Products of `Rows` rows with 64 keys.
template <int Rows>
KVILT_AVX512 void multiply_words(const score_task& task, int row, const int* words) {
  __m512i high[Rows][4], low[Rows][4];
  KVILT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    KVILT_UNROLL
    for (int j = 0; j < 4; ++j) high[r][j] = low[r][j] = _mm512_setzero_si512();
  }
  const signed char* codes = task.q_codes + row * 2 * task.q_stride;
  for (int w = 0; w < task.dim / 4; ++w) {
    __m512i key[4];
    KVILT_UNROLL
    for (int j = 0; j < 4; ++j) key[j] = _mm512_loadu_si512(words + w * tile_tokens + 16 * j);
    KVILT_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const signed char* q = codes + r * 2 * task.q_stride + 4 * w;
      const __m512i q_high = _mm512_set1_epi32(read<int>(reinterpret_cast<const unsigned char*>(q)));
      const __m512i q_low = _mm512_set1_epi32(read<int>(reinterpret_cast<const unsigned char*>(q + task.dim)));
      KVILT_UNROLL
      for (int j = 0; j < 4; ++j) {
        high[r][j] = _mm512_dpbusd_epi32(high[r][j], key[j], q_high);
        low[r][j] = _mm512_dpbusd_epi32(low[r][j], key[j], q_low);
      }
    }
  }
  KVILT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    // NOTE: the sum of offset codes may wrap; without the offset it fits.
    const __m512i offset = _mm512_set1_epi32(int(unsigned(task.offset) * unsigned(task.q_sum[row + r])));
    KVILT_UNROLL
    for (int j = 0; j < 4; ++j) {
      const __m512i sum = _mm512_sub_epi32(_mm512_add_epi32(_mm512_slli_epi32(high[r][j], 7), low[r][j]), offset);
      store(task.out + (row + r) * tile_tokens + 16 * j,
            multiply(_mm512_cvtepi32_ps(sum), splat(task.q_scale[row + r])));
    }
  }
}

/// The same of the float kernels, for integers.
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

/// Sums by lane of the products of a query's codes and a key's, in a row of `Lines` lines; 0: of `bytes` bytes.
template <code_kind Kind, int Lines>
KVILT_AVX512 KVILT_ALWAYS_INLINE __m512i multiply_row(const signed char* q, int dim, const unsigned char* key,
                                                      int bytes) {
  constexpr bool halves = Kind == code_kind::u4;  // two numbers to a byte
  const __m512i nibble = _mm512_set1_epi8(15);
  __m512i high = _mm512_setzero_si512(), low = high;
  KVILT_UNROLL
  for (int b = 0; b < (Lines > 0 ? 64 * Lines : bytes); b += 64) {
    const __m512i codes = read_line<(Lines > 0)>(key + b, bytes - b);
    const __m512i even = halves ? _mm512_and_si512(codes, nibble) : codes;
    high = _mm512_dpbusd_epi32(high, even, _mm512_loadu_si512(q + b));
    low = _mm512_dpbusd_epi32(low, even, _mm512_loadu_si512(q + dim + b));
    if constexpr (halves) {
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(codes, 4), nibble);
      high = _mm512_dpbusd_epi32(high, odd, _mm512_loadu_si512(q + bytes + b));
      low = _mm512_dpbusd_epi32(low, odd, _mm512_loadu_si512(q + dim + bytes + b));
    }
  }
  return _mm512_add_epi32(_mm512_slli_epi32(high, 7), low);
}

/// Products of one row with the tile's keys, a key at a time as it lies: less work than to gather words for one row.
template <code_kind Kind, int Lines>
KVILT_AVX512 void multiply_one_row(const score_task& task, int row) {
  const signed char* const q = task.q_codes + row * 2 * task.q_stride;
  const unsigned char* const* const ahead = row == 0 ? task.ahead : nullptr;
  const int bytes = Kind == code_kind::u4 ? task.dim / 2 : task.dim;
  const __m512i offset = _mm512_set1_epi32(int(unsigned(task.offset) * unsigned(task.q_sum[row])));
  for (int t = task.first / 16 * 16; t < task.last; t += 16) {
    __m512i part[16];
    KVILT_UNROLL
    for (int i = 0; i < 16; ++i) {
      for (int b = 0; b < bytes; b += 64) fetch_ahead(ahead, t + i, b);
      part[i] = multiply_row<Kind, Lines>(q, task.dim, task.rows[t + i], bytes);
    }
    const __m512i sum = _mm512_sub_epi32(sum_each(part), offset);
    store(task.out + row * tile_tokens + t, multiply(_mm512_cvtepi32_ps(sum), splat(task.q_scale[row])));
  }
}

template <code_kind Kind>
KVILT_AVX512 void multiply_one_row(const score_task& task, int row) {
  const int bytes = Kind == code_kind::u4 ? task.dim / 2 : task.dim;
  if (bytes == 64) return multiply_one_row<Kind, 1>(task, row);
  if (bytes == 128) return multiply_one_row<Kind, 2>(task, row);
  multiply_one_row<Kind, 0>(task, row);
}

template <code_kind Kind>
KVILT_AVX512 void multiply_integer_keys(const score_task& task) {
  if (task.count <= 2) {
    for (int row = 0; row < task.count; ++row) multiply_one_row<Kind>(task, row);
    return;
  }
  int* const words = reinterpret_cast<int*>(task.scratch);
  if (task.dim % (Kind == code_kind::u4 ? 128 : 64) == 0)
    gather_keys<Kind, true>(task, words);
  else
    gather_keys<Kind, false>(task, words);
  int row = 0;
  for (; row + 2 <= task.count; row += 2) multiply_words<2>(task, row, words);
  if (row < task.count) multiply_words<1>(task, row, words);
}

}  // namespace kvilt::inline KVILT_ABI::detail::avx512

#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif
