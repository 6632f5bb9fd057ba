// What it costs to evict rows, as many in each layer and head and other ones in each: beside one memcpy of the bytes that
// stay, and beside the same rows' way up a plain array, each by a memcpy of its own.
#include <kvilt/kvilt.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace {

using namespace kvilt;

constexpr int layers = 8, kv_heads = 8, lists = layers * kv_heads, max_step = 256;
constexpr idx tokens = 8192;

template <template <int> class Format>
using evicting = policy<paged<16>, Format<128>, Format<128>, listed>;
template <int Dim>
using int8 = q8<Dim>;
template <int Dim>
using int4 = q4<Dim>;

// A sequence of `tokens` tokens, again after each eviction: rows were written once, and nobody asks what they are.
template <class Policy>
class filled {
 public:
  filled()
      : cache_({.layers = layers, .kv_heads = kv_heads, .sequences = 1, .tokens = tokens, .max_step = max_step},
               host_memory()),
        name_(cache_.open()),
        workspace_(cache_.workspace_bytes(host(), 1)) {
    std::vector<float> numbers(std::size_t(max_step) * kv_heads * 128);
    std::mt19937 any(1);
    for (float& x : numbers) x = float(any() % 2001) / 1000 - 1;
    const rows<const float> given = packed_rows<const float>(numbers.data(), kv_heads, 128);
    grow([&](const step& now) {
      for (int layer = 0; layer < layers; ++layer) append(host(), cache_.view(layer), now, given, given);
    });
  }
  void again() {
    cache_.truncate(name_, 0);
    grow([](const step&) {});
  }
  void keep(std::span<const int> places) { cache_.keep(host(), name_, places); }

 private:
  template <class Write>
  void grow(Write&& write) {
    in_chunks(tokens, max_step, [&](idx, int count) {
      cache_.reserve(name_, count);
      const step now = cache_.begin(host(), {&name_, 1}, {&count, 1}, workspace_);
      write(now);
      cache_.commit(now);
    });
  }

  cache<Policy> cache_;
  sequence name_;
  std::vector<unsigned char> workspace_;
};

// One of every `apart` rows, at random, and the first four.
std::vector<int> some_places(int apart) {
  std::mt19937 any(2);
  std::vector<int> all(tokens), places;
  for (int i = 0; i < int(tokens); ++i) all[std::size_t(i)] = i;
  for (int list = 0; list < lists; ++list) {
    std::vector<int> one(std::size_t(tokens / apart));
    std::sample(all.begin() + 4, all.end(), one.begin() + 4, idx(one.size()) - 4, any);
    std::copy_n(all.begin(), 4, one.begin());
    places.insert(places.end(), one.begin(), one.end());
  }
  return places;
}

template <class Policy>
idx bytes_of(std::size_t places) {
  const Policy p;
  return idx(places) * (p.k.code_bytes() + p.k.param_bytes() + p.v.code_bytes() + p.v.param_bytes());
}

template <template <int> class Format>
void keep(benchmark::State& state) {
  filled<evicting<Format>> kept;
  const std::vector<int> places = some_places(int(state.range(0)));
  for (auto _ : state) {
    kept.keep(places);
    state.PauseTiming();
    kept.again();
    state.ResumeTiming();
  }
  state.SetBytesProcessed(idx(state.iterations()) * bytes_of<evicting<Format>>(places.size()));
}

template <template <int> class Format>
void move_up_an_array(benchmark::State& state) {
  const std::vector<int> places = some_places(int(state.range(0)));
  constexpr idx bytes = 2 * Format<128>().code_bytes();  // K and V side by side
  const std::size_t count = places.size() / lists;
  std::vector<unsigned char> all(std::size_t(lists * tokens * bytes), 1);
  for (auto _ : state) {
    for (std::size_t list = 0; list < lists; ++list) {
      unsigned char* const rows = all.data() + list * std::size_t(tokens * bytes);
      for (std::size_t i = 0; i < count; ++i)
        if (const std::size_t from = std::size_t(places[list * count + i]); from != i)
          std::memcpy(rows + i * bytes, rows + from * bytes, bytes);
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(idx(state.iterations()) * idx(places.size()) * bytes);
}

template <template <int> class Format>
void copy_of_what_stays(benchmark::State& state) {
  const std::size_t bytes = std::size_t(bytes_of<evicting<Format>>(std::size_t(lists * tokens / state.range(0))));
  std::vector<unsigned char> from(bytes, 1), to(bytes, 2);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(idx(state.iterations()) * idx(bytes));
}

BENCHMARK(keep<bf16>)->Arg(2)->Arg(4)->Arg(8)->Unit(benchmark::kMicrosecond);
BENCHMARK(move_up_an_array<bf16>)->Arg(2)->Arg(4)->Arg(8)->Unit(benchmark::kMicrosecond);
BENCHMARK(copy_of_what_stays<bf16>)->Arg(2)->Arg(4)->Arg(8)->Unit(benchmark::kMicrosecond);
BENCHMARK(keep<int8>)->Arg(2)->Arg(4)->Arg(8)->Unit(benchmark::kMicrosecond);
BENCHMARK(move_up_an_array<int8>)->Arg(2)->Arg(4)->Arg(8)->Unit(benchmark::kMicrosecond);
BENCHMARK(copy_of_what_stays<int8>)->Arg(2)->Arg(4)->Arg(8)->Unit(benchmark::kMicrosecond);
BENCHMARK(keep<int4>)->Arg(2)->Arg(4)->Arg(8)->Unit(benchmark::kMicrosecond);
BENCHMARK(move_up_an_array<int4>)->Arg(2)->Arg(4)->Arg(8)->Unit(benchmark::kMicrosecond);
BENCHMARK(copy_of_what_stays<int4>)->Arg(2)->Arg(4)->Arg(8)->Unit(benchmark::kMicrosecond);

}  // namespace
