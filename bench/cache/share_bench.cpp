// What it costs to have a sequence once more: a fork, and a prompt that is there already, beside a copy of its bytes.
#include <kvilt/kvilt.hpp>

#include <benchmark/benchmark.h>

#include <cstring>
#include <numeric>
#include <span>
#include <vector>

namespace {

using namespace kvilt;

using whole_pages = policy<paged<16>, q8<128>>;
using with_tail = policy<paged<16>, rotated<q4<128>>, rotated<q4<128>>, keep_all, 4, 64>;

constexpr int layers = 32, kv_heads = 8, max_step = 256;

// A sequence of so many tokens, the last of them decoded. NOTE: nobody reads its rows, so none are written.
template <class Policy>
class filled {
 public:
  explicit filled(idx tokens, bool prefixes)
      : cache_({.layers = layers,
                .kv_heads = kv_heads,
                .sequences = 3,
                .tokens = 3 * tokens,
                .max_length = tokens,
                .max_step = max_step,
                .prefixes = prefixes},
               host_memory()),
        text_(std::size_t(tokens)) {
    std::iota(text_.begin(), text_.end(), 0);
    if constexpr (keeps_prefixes<Policy>)
      name_ = prefixes ? cache_.open(text_).name : cache_.open();
    else
      name_ = cache_.open();
    std::vector<unsigned char> workspace(cache_.workspace_bytes(host(), 1));
    const auto step = [&](idx, int count) {
      cache_.reserve(name_, count);
      cache_.commit(cache_.begin(host(), {&name_, 1}, {&count, 1}, workspace));
    };
    in_chunks(tokens - 1, max_step, step);
    step(0, 1);
    if constexpr (keeps_prefixes<Policy>)
      if (prefixes) cache_.name(name_, text_);
  }
  cache<Policy>& owner() { return cache_; }
  sequence name() const { return name_; }
  std::span<const token_id> text() const { return text_; }

 private:
  cache<Policy> cache_;
  std::vector<token_id> text_;
  sequence name_;
};

template <class Policy>
void fork(benchmark::State& state) {
  filled<Policy> kept(state.range(0), false);
  kept.owner().close(kept.owner().fork(host(), kept.name()));  // its memory has been touched
  for (auto _ : state) {
    const sequence child = kept.owner().fork(host(), kept.name());
    state.PauseTiming();
    kept.owner().close(child);
    state.ResumeTiming();
  }
}

void prompt_that_is_there(benchmark::State& state) {
  filled<whole_pages> kept(state.range(0), true);
  for (auto _ : state) {
    const opened_sequence found = kept.owner().open(kept.text());
    state.PauseTiming();
    if (found.tokens + 16 < state.range(0)) state.SkipWithError("the prompt was not found");
    kept.owner().close(found.name);
    state.ResumeTiming();
  }
}

template <class Policy>
void copy_of_its_bytes(benchmark::State& state) {
  const budget b = plan_bytes(Policy(), {.layers = layers,
                                         .kv_heads = kv_heads,
                                         .tokens = state.range(0),
                                         .max_length = state.range(0),
                                         .max_step = max_step});
  std::vector<unsigned char> from(std::size_t(b.bytes_per_sequence), 1), to(from.size(), 2);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * b.bytes_per_sequence);
}

BENCHMARK(fork<whole_pages>)->Arg(8192)->Arg(8200)->Unit(benchmark::kMicrosecond);
BENCHMARK(copy_of_its_bytes<whole_pages>)->Arg(8192)->Unit(benchmark::kMicrosecond);
BENCHMARK(fork<with_tail>)->Arg(8192)->Unit(benchmark::kMicrosecond);
BENCHMARK(copy_of_its_bytes<with_tail>)->Arg(8192)->Unit(benchmark::kMicrosecond);
BENCHMARK(prompt_that_is_there)->Arg(8192)->Unit(benchmark::kMicrosecond);

}  // namespace
