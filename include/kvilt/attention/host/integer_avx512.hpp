#pragma once

#include <kvilt/attention/host/integer_keys_avx512.hpp>

#if KVILT_X86
#if !defined(__clang__)
#pragma GCC diagnostic push
// The intrinsics of g++ 12 read registers that they overwrite.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace kvilt::inline KVILT_ABI::detail::avx512 {

/// \file
/// Sums of 8-bit and 4-bit values by integer dot products (VNNI) of bytes: weights are integers of 14 bits, 128 high + low.

inline constexpr int tile_tokens = host_tile::tokens;

/// high and low of 16 integers, as the lowest bytes: value = 128 high + low, |low| <= 64.
KVILT_AVX512 inline void split(__m512i value, __m512i& high, __m512i& low) {
  high = _mm512_srai_epi32(_mm512_add_epi32(value, _mm512_set1_epi32(64)), 7);
  low = _mm512_sub_epi32(value, _mm512_slli_epi32(high, 7));
}

/// 64 bytes of a row, or the `bytes` that are left of it where it does not end on a line.
template <bool Whole>
KVILT_AVX512 KVILT_ALWAYS_INLINE __m512i read_line(const unsigned char* p, int bytes) {
  if constexpr (Whole) return _mm512_loadu_si512(p);
  return _mm512_maskz_loadu_epi8(bytes >= 64 ? ~__mmask64(0) : (__mmask64(1) << bytes) - 1, p);
}

/// The bytes of four lines side by side: of each byte of a line, the four as a word.
KVILT_AVX512 KVILT_ALWAYS_INLINE void interleave(__m512i (&x)[4]) {
  const __m512i a = _mm512_unpacklo_epi8(x[0], x[1]), b = _mm512_unpackhi_epi8(x[0], x[1]);
  const __m512i c = _mm512_unpacklo_epi8(x[2], x[3]), d = _mm512_unpackhi_epi8(x[2], x[3]);
  x[0] = _mm512_unpacklo_epi16(a, c), x[1] = _mm512_unpackhi_epi16(a, c);
  x[2] = _mm512_unpacklo_epi16(b, d), x[3] = _mm512_unpackhi_epi16(b, d);
}

/// Four tokens' codes of each number as a word: 64 numbers of a tile, words [token / 4][4][16], numbers in the order
/// that `in_order` undoes. For 4-bit codes the even numbers of 128, then the odd ones.
template <code_kind Kind, bool Whole>
KVILT_AVX512 void gather_values(const value_task& task, int byte, int first, int last, unsigned char* words) {
  const __m512i nibble = _mm512_set1_epi8(15);
  constexpr int half = tile_tokens * 64;  // bytes of 64 numbers of a tile
  for (int t = first; t < last; t += 4) {
    __m512i x[4];
    KVILT_UNROLL
    for (int i = 0; i < 4; ++i) {
      fetch_ahead(task.ahead, t + i, byte);
      x[i] = read_line<Whole>(task.rows[t + i] + byte, (Kind == code_kind::u4 ? task.dim / 2 : task.dim) - byte);
    }
    interleave(x);
    KVILT_UNROLL
    for (int i = 0; i < 4; ++i) {
      unsigned char* const to = words + 64 * (t + i);
      if constexpr (Kind == code_kind::u4) {
        _mm512_storeu_si512(to, _mm512_and_si512(x[i], nibble));
        _mm512_storeu_si512(to + half, _mm512_and_si512(_mm512_srli_epi32(x[i], 4), nibble));
      } else {
        _mm512_storeu_si512(to, x[i]);
      }
    }
  }
}

/// Weights as integers, [2][tokens] bytes. Returns their scale, NaN where one is not finite: so are its values then.
/// What rounding leaves of a weight goes on to the next: many small ones beside a large one are not lost.
KVILT_AVX512 inline float quantise_weights(const float* weights, int first, int last, signed char* codes, int& sum) {
  f32 most = zero();
  bool finite = true;
  for (int t = first; t < last; t += lanes) {
    const f32 w = load(weights + t);
    finite &= _mm512_fpclass_ps_mask(w, 0x99) == 0;
    most = larger(_mm512_abs_ps(w), most);  // a user's scales may be below 0
  }
  const float high = largest_lane(most);
  const float scale = finite ? high / integer_limit : __builtin_nanf("");
  const float inverse = finite && high > 2e-34f ? integer_limit / high : 0.0f;  // below, the scale is no normal number
  __m512i total = _mm512_setzero_si512();
  f32 left = zero();
  for (int t = first; t < last; t += lanes) {
    const f32 w = finite ? multiply_add(load(weights + t), splat(inverse), left) : zero();
    const __m512i value = _mm512_cvtps_epi32(w);
    left = subtract(w, _mm512_cvtepi32_ps(value));
    __m512i high_part, low_part;
    split(value, high_part, low_part);
    total = _mm512_add_epi32(total, value);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + t), _mm512_cvtepi32_epi8(high_part));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + tile_tokens + t), _mm512_cvtepi32_epi8(low_part));
  }
  sum = _mm512_reduce_add_epi32(total);
  return scale;
}

/// The order of numbers in which `gather_values` has left four vectors: vector j, lane 4 l + e <-> number 16 l + 4 j + e.
KVILT_AVX512 inline void in_order(f32 (&x)[4]) {
  const f32 a = _mm512_shuffle_f32x4(x[0], x[1], 0x44), b = _mm512_shuffle_f32x4(x[0], x[1], 0xee);
  const f32 c = _mm512_shuffle_f32x4(x[2], x[3], 0x44), d = _mm512_shuffle_f32x4(x[2], x[3], 0xee);
  x[0] = _mm512_shuffle_f32x4(a, c, 0x88), x[1] = _mm512_shuffle_f32x4(a, c, 0xdd);
  x[2] = _mm512_shuffle_f32x4(b, d, 0x88), x[3] = _mm512_shuffle_f32x4(b, d, 0xdd);
}

struct weight_codes {
  signed char codes[host_tile::rows][2 * tile_tokens];
  float scale[host_tile::rows];
  int sum[host_tile::rows];
};

/// 128 high + low - constant as floats, in order.
KVILT_AVX512 inline void finish_sums(const __m512i (&high)[4], const __m512i (&low)[4], int constant, f32 (&sums)[4]) {
  KVILT_UNROLL
  for (int j = 0; j < 4; ++j) {
    const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high[j], 7), low[j]);
    sums[j] = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, _mm512_set1_epi32(constant)));
  }
  in_order(sums);
}

/// Sums of 64 numbers for `Rows` rows, as integers: sums[r][j], in order.
template <int Rows>
KVILT_AVX512 void add_words(const weight_codes& weights, int row, int offset, const unsigned char* words, int first,
                            int last, f32 (&sums)[Rows][4]) {
  __m512i high[Rows][4], low[Rows][4];
  KVILT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    KVILT_UNROLL
    for (int j = 0; j < 4; ++j) high[r][j] = low[r][j] = _mm512_setzero_si512();
  }
  for (int t = first; t < last; t += 4) {
    __m512i value[4];
    KVILT_UNROLL
    for (int j = 0; j < 4; ++j) value[j] = _mm512_loadu_si512(words + 64 * (t + j));
    KVILT_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const unsigned char* codes = reinterpret_cast<const unsigned char*>(weights.codes[row + r]) + t;
      const __m512i w_high = _mm512_set1_epi32(read<int>(codes));
      const __m512i w_low = _mm512_set1_epi32(read<int>(codes + tile_tokens));
      KVILT_UNROLL
      for (int j = 0; j < 4; ++j) {
        high[r][j] = _mm512_dpbusd_epi32(high[r][j], value[j], w_high);
        low[r][j] = _mm512_dpbusd_epi32(low[r][j], value[j], w_low);
      }
    }
  }
  KVILT_UNROLL
  for (int r = 0; r < Rows; ++r) finish_sums(high[r], low[r], offset * weights.sum[row + r], sums[r]);
}

/// to = factor from + constant + scale sums, for 16 numbers from `d` on.
KVILT_AVX512 inline void add_sums(const value_task& task, int row, int d, float scale, f32 sums) {
  const idx at = row * task.stride + d;
  const f32 before = multiply_add(splat(task.factor[row]), load(task.from + at), splat(task.constant[row]));
  store(task.to + at, multiply_add(splat(scale), sums, before));
}

/// The sums of 64 numbers, or the even and the odd ones of 128, take their places.
template <code_kind Kind>
KVILT_AVX512 void add_numbers(const value_task& task, int row, int d, float scale, const f32 (&even)[4],
                              const f32 (&odd)[4]) {
  if constexpr (Kind == code_kind::u4) {
    const __m512i lower = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i upper = _mm512_add_epi32(lower, _mm512_set1_epi32(8));
    for (int j = 0; j < 8 && d + 16 * j < task.dim; ++j)
      add_sums(task, row, d + 16 * j, scale, _mm512_permutex2var_ps(even[j / 2], j % 2 ? upper : lower, odd[j / 2]));
  } else {
    for (int j = 0; j < 4 && d + 16 * j < task.dim; ++j) add_sums(task, row, d + 16 * j, scale, even[j]);
  }
}

template <code_kind Kind, int Rows>
KVILT_AVX512 void add_rows(const value_task& task, const weight_codes& weights, int row, int d,
                           const unsigned char* words, int first, int last) {
  f32 even[Rows][4], odd[Rows][4];
  add_words<Rows>(weights, row, task.offset, words, first, last, even);
  if constexpr (Kind == code_kind::u4)
    add_words<Rows>(weights, row, task.offset, words + tile_tokens * 64, first, last, odd);
  for (int r = 0; r < Rows; ++r)
    add_numbers<Kind>(task, row + r, d, weights.scale[row + r], even[r], Kind == code_kind::u4 ? odd[r] : even[r]);
}

/// The same for one row of 8-bit codes, `Lines` lines from number d on as they lie: words for one row are not worth
/// storing.
template <int Lines>
KVILT_AVX512 void add_one_row(const value_task& task, const weight_codes& weights, int d, int first, int last) {
  __m512i high[Lines][4], low[Lines][4];
  KVILT_UNROLL
  for (int j = 0; j < 4 * Lines; ++j) high[j / 4][j % 4] = low[j / 4][j % 4] = _mm512_setzero_si512();
  for (int t = first; t < last; t += 4) {
    const unsigned char* codes = reinterpret_cast<const unsigned char*>(weights.codes[0]) + t;
    const __m512i w_high = _mm512_set1_epi32(read<int>(codes));
    const __m512i w_low = _mm512_set1_epi32(read<int>(codes + tile_tokens));
    KVILT_UNROLL
    for (int l = 0; l < Lines; ++l) {
      __m512i x[4];
      KVILT_UNROLL
      for (int i = 0; i < 4; ++i) {
        fetch_ahead(task.ahead, t + i, d + 64 * l);
        x[i] = _mm512_loadu_si512(task.rows[t + i] + d + 64 * l);
      }
      interleave(x);
      KVILT_UNROLL
      for (int j = 0; j < 4; ++j) {
        high[l][j] = _mm512_dpbusd_epi32(high[l][j], x[j], w_high);
        low[l][j] = _mm512_dpbusd_epi32(low[l][j], x[j], w_low);
      }
    }
  }
  KVILT_UNROLL
  for (int l = 0; l < Lines; ++l) {
    f32 sums[4];
    finish_sums(high[l], low[l], task.offset * weights.sum[0], sums);
    add_numbers<code_kind::u8>(task, 0, d + 64 * l, weights.scale[0], sums, sums);
  }
}

template <code_kind Kind, bool Whole>
KVILT_AVX512 void add_by_words(const value_task& task, const weight_codes& weights, int first, int last) {
  constexpr int numbers = Kind == code_kind::u4 ? 128 : 64;  // at a time
  for (int d = 0; d < task.dim; d += numbers) {
    gather_values<Kind, Whole>(task, Kind == code_kind::u4 ? d / 2 : d, first, last, task.scratch);
    int row = 0;
    for (; row + 2 <= task.count; row += 2) add_rows<Kind, 2>(task, weights, row, d, task.scratch, first, last);
    if (row < task.count) add_rows<Kind, 1>(task, weights, row, d, task.scratch, first, last);
  }
}

template <code_kind Kind>
KVILT_AVX512 void add_integer_values(const value_task& task) {
  weight_codes weights;
  const int first = task.first / 16 * 16, last = (task.last + 15) / 16 * 16;
  for (int r = 0; r < task.count; ++r)
    weights.scale[r] = quantise_weights(task.weights + r * tile_tokens, first, last, weights.codes[r], weights.sum[r]);
  if (Kind == code_kind::u8 && task.count == 1 && task.dim % 64 == 0) {
    int d = 0;
    for (; d + 128 <= task.dim; d += 128) add_one_row<2>(task, weights, d, first, last);
    if (d < task.dim) add_one_row<1>(task, weights, d, first, last);
  } else if (task.dim % (Kind == code_kind::u4 ? 128 : 64) == 0) {
    add_by_words<Kind, true>(task, weights, first, last);
  } else {
    add_by_words<Kind, false>(task, weights, first, last);
  }
}

/// Integer products where codes are integers.
constexpr host_kernels with_integers(host_kernels k) {
  k.multiply_integer_keys[int(code_kind::u8)] = avx512::multiply_integer_keys<code_kind::u8>;
  k.multiply_integer_keys[int(code_kind::u4)] = avx512::multiply_integer_keys<code_kind::u4>;
  k.add_integer_values[int(code_kind::u8)] = avx512::add_integer_values<code_kind::u8>;
  k.add_integer_values[int(code_kind::u4)] = avx512::add_integer_values<code_kind::u4>;
  k.quantise_query = avx512::quantise_query;
  return k;
}
inline constexpr host_kernels kernels = with_integers(float_kernels);

}  // namespace kvilt::inline KVILT_ABI::detail::avx512

#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif
