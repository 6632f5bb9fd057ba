#pragma once

#include <kvilt/kvilt.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <vector>

#if KVILT_X86
#include <immintrin.h>
#endif

/// What a machine could do at most, measured: how fast it reads memory, and how fast it multiplies and adds.
namespace ceilings {

using kvilt::idx;

template <class Work>
double seconds_of(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Reads memory that is in no cache, a part of it each time.
class read_loop {
 public:
  /// bytes: of all the memory, several times what the last cache holds.
  explicit read_loop(idx bytes) : memory_(kvilt::host_memory(), std::size_t(bytes)) {
    std::fill_n(words(), memory_.bytes() / sizeof(std::uint64_t), 1);
  }

  /// Seconds that reading so many bytes takes.
  double operator()(const kvilt::host& exec, idx bytes) {
    const idx parts = kvilt::ceil_div(bytes, part), all = idx(memory_.bytes()) / part;
    const double seconds = seconds_of([&] {
      exec.for_each(parts, [&](idx i, int) {
        const idx size = kvilt::smaller(part, bytes - i * part);
        std::uint64_t total = sum(words() + (next_ + i) % all * (part / 8), size / 8);
        benchmark::DoNotOptimize(total);
      });
    });
    next_ = (next_ + parts) % all;
    return seconds;
  }

 private:
  static constexpr idx part = idx(1) << 20;

  // In four streams, which processors fetch ahead better than one; several sums each, so that compilers make vectors of
  // them and none waits for another.
  static std::uint64_t sum(const std::uint64_t* words, idx count) {
    constexpr int streams = 4, lanes = 8;
    std::uint64_t sums[streams][lanes] = {};
    const idx share = count / streams;
    for (idx i = 0; i + lanes <= share; i += lanes)
      for (int s = 0; s < streams; ++s)
        for (int lane = 0; lane < lanes; ++lane) sums[s][lane] += words[s * share + i + lane];
    std::uint64_t total = 0;
    for (const auto& stream : sums)
      for (const std::uint64_t x : stream) total += x;
    return total;
  }

  std::uint64_t* words() const { return reinterpret_cast<std::uint64_t*>(memory_.data()); }

  kvilt::buffer<kvilt::memory_space::host> memory_;  // as a cache has it
  idx next_ = 0;                                     // part
};

// Each of these runs `rounds` times `chains` instructions on registers alone, as many as hide how long one takes, and
// returns how many products of two numbers that were.
inline constexpr int chains = 12;

#if KVILT_X86
__attribute__((target("avx512f"))) inline double add_products_avx512(long rounds) {
  const __m512 a = _mm512_set1_ps(0.5f);
  __m512 sum[chains];
  KVILT_UNROLL
  for (int j = 0; j < chains; ++j) sum[j] = _mm512_set1_ps(float(j));
  for (long i = 0; i < rounds; ++i) {
    KVILT_UNROLL
    for (int j = 0; j < chains; ++j) sum[j] = _mm512_fmadd_ps(sum[j], a, a);
  }
  KVILT_UNROLL
  for (int j = 0; j < chains; ++j) benchmark::DoNotOptimize(sum[j]);
  return 16.0 * chains * double(rounds);
}

__attribute__((target("avx2,fma"))) inline double add_products_avx2(long rounds) {
  const __m256 a = _mm256_set1_ps(0.5f);
  __m256 sum[chains];
  KVILT_UNROLL
  for (int j = 0; j < chains; ++j) sum[j] = _mm256_set1_ps(float(j));
  for (long i = 0; i < rounds; ++i) {
    KVILT_UNROLL
    for (int j = 0; j < chains; ++j) sum[j] = _mm256_fmadd_ps(sum[j], a, a);
  }
  KVILT_UNROLL
  for (int j = 0; j < chains; ++j) benchmark::DoNotOptimize(sum[j]);
  return 8.0 * chains * double(rounds);
}

/// Of a code in 8 bit and a number of 14 bits, which takes two instructions: one of its high byte and one of its low.
__attribute__((target("avx512f,avx512vnni"))) inline double add_integer_products_avx512(long rounds) {
  const __m512i a = _mm512_set1_epi32(0x01020304);
  __m512i sum[chains];
  KVILT_UNROLL
  for (int j = 0; j < chains; ++j) sum[j] = _mm512_set1_epi32(j);
  for (long i = 0; i < rounds; ++i) {
    KVILT_UNROLL
    for (int j = 0; j < chains; ++j) sum[j] = _mm512_dpbusd_epi32(sum[j], a, a);
  }
  KVILT_UNROLL
  for (int j = 0; j < chains; ++j) benchmark::DoNotOptimize(sum[j]);
  return 64.0 / 2 * chains * double(rounds);
}
#endif

/// In what the program is compiled for.
inline double add_products_portable(long rounds) {
#if defined(__AVX__)
  constexpr int lanes = 8;
#else
  constexpr int lanes = 4;
#endif
  typedef float vector __attribute__((vector_size(sizeof(float) * lanes)));
  const vector a = vector{} + 0.5f;
  vector sum[chains];
  KVILT_UNROLL
  for (int j = 0; j < chains; ++j) sum[j] = a * float(j);
  for (long i = 0; i < rounds; ++i) {
    KVILT_UNROLL
    for (int j = 0; j < chains; ++j) sum[j] = sum[j] * a + a;
  }
  KVILT_UNROLL
  for (int j = 0; j < chains; ++j) benchmark::DoNotOptimize(sum[j]);
  return double(lanes) * chains * double(rounds);
}

/// The kernels multiply integers where the instructions do and codes are such.
inline double add_products(kvilt::instruction_set set, bool integers, long rounds) {
#if KVILT_X86
  if (set == kvilt::instruction_set::avx512)
    return integers ? add_integer_products_avx512(rounds) : add_products_avx512(rounds);
  if (set == kvilt::instruction_set::avx2) return add_products_avx2(rounds);
#endif
  (void)set, (void)integers;
  return add_products_portable(rounds);
}

/// Products of two numbers a second that all of the workers add up, with operands in registers.
inline double product_rate(const kvilt::host& exec, bool integers) {
  constexpr long rounds = 200000;  // about a millisecond
  std::vector<double> products(std::size_t(exec.workers()));
  const double seconds = seconds_of([&] {
    exec.for_each(idx(products.size()),
                  [&](idx i, int) { products[std::size_t(i)] = add_products(exec.instructions(), integers, rounds); });
  });
  return std::accumulate(products.begin(), products.end(), 0.0) / seconds;
}

}  // namespace ceilings
