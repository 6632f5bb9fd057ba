#include "code_matrix.hpp"

#include <kvilt/core/floats.hpp>

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Each kernel is a template over what panels differ in. Integer sums are exact and the same everywhere; they are scaled
// and added up in fp32, block by block.
namespace example {
namespace {

constexpr int rows = code_panel::rows, quads = coded_rows::block / 4;

// What a group's codes add up to, all of them times a zero or an offset.
template <int Groups>
std::int32_t sum_of(const coded_rows::row& in, int b, int group) {
  return Groups == 2 ? in.sums[2 * b + group] : in.sums[2 * b] + in.sums[2 * b + 1];
}

struct portable {
  template <bool Nibbles, int Groups, bool Offsets>
  static void multiply(const code_panel& p, const coded_rows::row& in, float* out) {
    float sums[rows] = {};
    for (int b = 0; b < p.blocks; ++b) {
      const std::uint8_t* codes = p.codes + b * (Nibbles ? rows * 16 : rows * 32);
      const std::uint16_t* params = p.params + b * rows * Groups * (Offsets ? 2 : 1);
      std::int32_t dots[Groups][rows];
      for (int g = 0; g < Groups; ++g)
        for (std::int32_t& dot : dots[g]) dot = Offsets ? 0 : -p.zero * sum_of<Groups>(in, b, g);
      for (int q = 0; q < quads; ++q) {
        const std::uint8_t* from = codes + (Nibbles ? q % 4 : q) * rows * 4;
        for (int r = 0; r < rows; ++r)
          for (int i = 0; i < 4; ++i) {
            const int code = Nibbles ? from[4 * r + i] >> (q < 4 ? 0 : 4) & 15 : from[4 * r + i];
            dots[q < 4 ? 0 : Groups - 1][r] += code * in.codes[32 * b + 4 * q + i];
          }
      }
      for (int g = 0; g < Groups; ++g)
        for (int r = 0; r < rows; ++r) {
          sums[r] += static_cast<float>(dots[g][r]) * (kvilt::from_fp16(params[g * rows + r]) * in.scales[b]);
          if (Offsets)
            sums[r] += kvilt::from_fp16(params[(Groups + g) * rows + r]) *
                       (in.scales[b] * static_cast<float>(sum_of<Groups>(in, b, g)));
        }
    }
    std::memcpy(out, sums, sizeof sums);
  }
};

#if defined(__x86_64__)

// Four codes of a row of activations, in every lane.
std::int32_t quad_at(const coded_rows::row& in, int b, int q) {
  std::int32_t four;
  std::memcpy(&four, in.codes + 32 * b + 4 * q, 4);
  return four;
}

#define KVILT_AVX2 __attribute__((target("avx2,fma,f16c")))

struct avx2 {
  // Adds the products of eight rows' quads. NOTE: maddubs saturates pairs at 16 bits: a code of 8 bits times an
  // activation would, so it is taken as the magnitude of code - 128, at most 128 * 127 * 2.
  template <bool Nibbles>
  KVILT_AVX2 static __m256i add(__m256i dots, __m256i codes, std::int32_t four) {
    __m256i activations = _mm256_set1_epi32(four);
    if (!Nibbles) {
      const __m256i centred = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
      activations = _mm256_sign_epi8(activations, centred);
      codes = _mm256_abs_epi8(centred);
    }
    const __m256i pairs = _mm256_maddubs_epi16(codes, activations);
    return _mm256_add_epi32(dots, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }

  template <bool Nibbles, int Groups, bool Offsets>
  KVILT_AVX2 static void multiply(const code_panel& p, const coded_rows::row& in, float* out) {
    const __m256i low = _mm256_set1_epi8(15);
    __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    const int zero = (Nibbles ? 0 : 128) - (Offsets ? 0 : p.zero);
    for (int b = 0; b < p.blocks; ++b) {
      for (int half = 0; half < 2; ++half) {
        const std::uint8_t* codes = p.codes + b * (Nibbles ? rows * 16 : rows * 32) + 32 * half;
        const std::uint16_t* params = p.params + b * rows * Groups * (Offsets ? 2 : 1) + 8 * half;
        __m256i dots[Groups];
        for (int g = 0; g < Groups; ++g) dots[g] = _mm256_set1_epi32(zero * sum_of<Groups>(in, b, g));
        for (int q = 0; q < 4; ++q) {
          const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 64 * q));
          __m256i a = first, c;
          if (Nibbles) {
            a = _mm256_and_si256(first, low);
            c = _mm256_and_si256(_mm256_srli_epi16(first, 4), low);
          } else {
            c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 64 * (q + 4)));
          }
          dots[0] = add<Nibbles>(dots[0], a, quad_at(in, b, q));
          dots[Groups - 1] = add<Nibbles>(dots[Groups - 1], c, quad_at(in, b, q + 4));
        }
        for (int g = 0; g < Groups; ++g) {
          const __m256 scale = _mm256_mul_ps(load(params + g * rows), _mm256_set1_ps(in.scales[b]));
          sums[half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[g]), scale, sums[half]);
          if (Offsets)
            sums[half] = _mm256_fmadd_ps(load(params + (Groups + g) * rows),
                                         _mm256_set1_ps(in.scales[b] * static_cast<float>(sum_of<Groups>(in, b, g))),
                                         sums[half]);
        }
      }
    }
    _mm256_storeu_ps(out, sums[0]);
    _mm256_storeu_ps(out + 8, sums[1]);
  }

  KVILT_AVX2 static __m256 load(const std::uint16_t* params) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(params)));
  }
};

#define KVILT_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")))

struct avx512_vnni {
  // NOTE: GCC 12 sees an uninitialised operand in conversions without a mask.
  static constexpr __mmask16 all = 0xffff;

  template <bool Nibbles, int Groups, bool Offsets>
  KVILT_AVX512 static void multiply(const code_panel& p, const coded_rows::row& in, float* out) {
    const __m512i low = _mm512_set1_epi8(15);
    __m512 sum = _mm512_setzero_ps();
    for (int b = 0; b < p.blocks; ++b) {
      const std::uint8_t* codes = p.codes + b * (Nibbles ? rows * 16 : rows * 32);
      const std::uint16_t* params = p.params + b * rows * Groups * (Offsets ? 2 : 1);
      __m512i dots[Groups];
      for (int g = 0; g < Groups; ++g)
        dots[g] = Offsets ? _mm512_setzero_si512() : _mm512_set1_epi32(-p.zero * sum_of<Groups>(in, b, g));
      for (int q = 0; q < 4; ++q) {
        const __m512i first = _mm512_loadu_si512(codes + 64 * q);
        __m512i a = first, c;
        if (Nibbles) {
          a = _mm512_and_si512(first, low);
          c = _mm512_and_si512(_mm512_srli_epi16(first, 4), low);
        } else {
          c = _mm512_loadu_si512(codes + 64 * (q + 4));
        }
        dots[0] = _mm512_dpbusd_epi32(dots[0], a, _mm512_set1_epi32(quad_at(in, b, q)));
        dots[Groups - 1] = _mm512_dpbusd_epi32(dots[Groups - 1], c, _mm512_set1_epi32(quad_at(in, b, q + 4)));
      }
      for (int g = 0; g < Groups; ++g) {
        const __m512 scale = _mm512_mul_ps(load(params + g * rows), _mm512_set1_ps(in.scales[b]));
        sum = _mm512_fmadd_ps(_mm512_maskz_cvtepi32_ps(all, dots[g]), scale, sum);
        if (Offsets)
          sum = _mm512_fmadd_ps(load(params + (Groups + g) * rows),
                                _mm512_set1_ps(in.scales[b] * static_cast<float>(sum_of<Groups>(in, b, g))), sum);
      }
    }
    _mm512_storeu_ps(out, sum);
  }

  KVILT_AVX512 static __m512 load(const std::uint16_t* params) {
    return _mm512_maskz_cvtph_ps(all, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(params)));
  }
};

#undef KVILT_AVX512
#undef KVILT_AVX2

#endif

template <class Isa, bool Nibbles, int Groups>
void by_offsets(const code_panel& p, const coded_rows::row& in, float* out) {
  p.offsets ? Isa::template multiply<Nibbles, Groups, true>(p, in, out)
            : Isa::template multiply<Nibbles, Groups, false>(p, in, out);
}
template <class Isa, bool Nibbles>
void by_groups(const code_panel& p, const coded_rows::row& in, float* out) {
  p.groups == 2 ? by_offsets<Isa, Nibbles, 2>(p, in, out) : by_offsets<Isa, Nibbles, 1>(p, in, out);
}
template <class Isa>
void multiply(const code_panel& p, const coded_rows::row& in, float* out) {
  p.nibbles ? by_groups<Isa, true>(p, in, out) : by_groups<Isa, false>(p, in, out);
}

std::vector<panel_kernel> find_kernels() {
  std::vector<panel_kernel> found;
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");  // and then fp16 conversion
  const bool has_vnni = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  if (has_avx2 && has_vnni) found.push_back({"AVX-512 VNNI", &multiply<avx512_vnni>});
  if (has_avx2) found.push_back({"AVX2", &multiply<avx2>});
#endif
  found.push_back({"portable", &multiply<portable>});
  return found;
}

}  // namespace

const std::vector<panel_kernel>& panel_kernels() {
  static const std::vector<panel_kernel> kernels = find_kernels();
  return kernels;
}

}  // namespace example
