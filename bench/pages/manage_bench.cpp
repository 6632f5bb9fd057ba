// What a page manager costs an engine, in time of one core, each verb beside what arrays alone would cost in the same run.
//   bench_pages_manage [--trace=FILE] [--benchmark_filter=...]
// The trace is JSONL as Mooncake's authors publish it: input_length, and hash_ids of 512 tokens each. Without it there is
// no replay. On a machine with other work, `chrt -r 1 taskset -c 1` before it keeps a core.
#include "workloads.hpp"

#include <kvilt/pages/lru.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace bench;

void per_second(benchmark::State& state, const char* what, double count) {
  state.counters[what] = benchmark::Counter(count, benchmark::Counter::kIsRate);
}

// All pages of a pool are taken, and given back in an order at random: the next time they come in that order.
void pool_random(benchmark::State& state) {
  const idx pages = state.range(0);
  page_pool pool(pages);
  const std::vector<page_id> order = shuffled_pages(pages);
  std::vector<page_id> held(order.size());
  for (auto _ : state) {
    pool.take(held);
    for (const page_id p : order) pool.give(p);
  }
  per_second(state, "page_ops", 2.0 * double(pages) * double(state.iterations()));
}
// The same with a stack of ids and counts.
void pool_random_baseline(benchmark::State& state) {
  const std::vector<page_id> order = shuffled_pages(state.range(0));
  std::vector<page_id> stack(order.rbegin(), order.rend()), held(order.size());
  std::vector<std::uint32_t> holders(order.size(), 0);
  for (auto _ : state) {
    for (page_id& p : held) {
      p = stack.back();
      stack.pop_back();
      holders[std::size_t(p)] = 1;
    }
    benchmark::DoNotOptimize(held.data());
    for (const page_id p : order)
      if (--holders[std::size_t(p)] == 0) stack.push_back(p);
  }
  per_second(state, "page_ops", 2.0 * double(order.size()) * double(state.iterations()));
}

void churn_1000(benchmark::State& state) {
  churn c;
  for (auto _ : state) c.step();
  per_second(state, "page_ops", double(c.page_operations()));
  per_second(state, "sequence_steps", 1000.0 * double(state.iterations()));
}
void decode_append(benchmark::State& state) {
  growth g(int(state.range(0)));
  for (auto _ : state) g.step();
  per_second(state, "sequence_steps", double(state.range(0)) * double(state.iterations()));
}

// Prompts that are all cached, asked for at random.
void lookup_full_hit(benchmark::State& state) {
  cached_prompts cached(state.range(0) / prompt_pages);
  dice random(1);
  std::vector<std::vector<token_id>> texts(64);
  idx found = 0;
  for (auto _ : state) {
    // NOTE: other prompts all the time, or what is asked for is in the processor's caches.
    state.PauseTiming();
    for (auto& text : texts) text = cached.one_of(random);
    state.ResumeTiming();
    for (const auto& text : texts) found += cached.find(text);
  }
  const double blocks = double(texts.size()) * prompt_pages * double(state.iterations());
  if (double(found) != blocks) state.SkipWithError("not all pages are found");
  per_second(state, "blocks", blocks);
}
// The same where every page lies somewhere else, in prompts of few pages: nothing of them is in a cache. A prompt's pages
// are waited for together, prompts one after another.
void lookup_random(benchmark::State& state) {
  const idx each = state.range(1), prompts = state.range(0) / each;
  const std::size_t length = std::size_t(each * page_tokens);
  page_cache<> cache(prompts * each, page_tokens);
  const prefix_end root = cache.open_root({});
  const auto write = [&](std::uint64_t number, token_id* text) {
    for (std::uint64_t i = 0; i < length; ++i) text[i] = token_of(number << 20 | i);
  };
  std::vector<token_id> texts(std::size_t(4096 / each) * length);
  const std::vector<page_id> scattered = shuffled_pages(prompts * each);
  std::vector<page_id> pages(scattered.size());
  cache.take(pages);
  for (idx n = 0; n < prompts; ++n) {
    write(std::uint64_t(n), texts.data());
    pages.assign(&scattered[std::size_t(n * each)], &scattered[std::size_t(n * each)] + each);
    for (std::size_t i = 0; i < pages.size(); ++i)
      cache.write_tokens(pages[i], 0, &texts[i * page_tokens], page_tokens);
    prefix_end end = root;
    cache.store(end, pages);
    cache.give(pages);
  }
  dice random(1);
  idx found = 0;
  for (auto _ : state) {
    state.PauseTiming();
    for (std::size_t i = 0; i < texts.size(); i += length) write(random.below(std::uint64_t(prompts)), &texts[i]);
    state.ResumeTiming();
    for (std::size_t i = 0; i < texts.size(); i += length) {
      pages.clear();
      found += cache.find(root, std::span(texts).subspan(i, length), pages).pages;
    }
  }
  const double blocks = double(texts.size() / page_tokens) * double(state.iterations());
  if (double(found) != blocks) state.SkipWithError("not all pages are found");
  per_second(state, "blocks", blocks);
}
// What all that takes besides finding: a request of which nothing is cached, of no page.
void request_fixed_cost(benchmark::State& state) {
  page_manager<> manager({page_tokens, 1, {{1000}}});
  std::vector<page_move> moves;
  const std::vector<std::uint64_t> salt{42};
  const token_id text[2] = {1, 2};
  for (auto _ : state) manager.discard(manager.open(text, moves, {salt}).name);
}

// Prompts of which nothing is cached: asked for, allocated by eviction, stored, given back.
template <class Eviction>
void insert_with_eviction(benchmark::State& state) {
  full_manager<Eviction> full;
  std::vector<std::vector<token_id>> texts(64);
  for (auto _ : state) {
    state.PauseTiming();
    for (auto& text : texts) text = full.next_prompt();
    state.ResumeTiming();
    for (const auto& text : texts) full.pass(text);
  }
  per_second(state, "blocks", double(texts.size()) * prompt_pages * double(state.iterations()));
}
// One prompt of 126,000 tokens for which as many pages are evicted.
template <class Eviction>
void longest_pause(benchmark::State& state) {
  constexpr idx tokens = 126'000;
  full_manager<Eviction> full;
  std::vector<page_move> moves;
  for (auto _ : state) {
    state.PauseTiming();
    full.fill();
    const sequence s = full.manager().open({}, moves).name;
    state.ResumeTiming();
    full.manager().reserve(s, tokens, moves);
    state.PauseTiming();
    full.manager().discard(s);
    state.ResumeTiming();
  }
  per_second(state, "evicted_pages", double(tokens / page_tokens) * double(state.iterations()));
}

double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// The whole trace, one request at a time, prompts only, all of it stored.
template <class Eviction>
void replay(benchmark::State& state, const bench::trace& trace) {
  for (auto _ : state) {
    page_manager<Eviction> manager({page_tokens, 1, {{10'000 * 512 / page_tokens}}});
    std::vector<page_move> moves;
    std::vector<token_id> text;
    double seconds = 0;
    for (const bench::request& r : trace.requests) {
      write_prompt(r, text);
      moves.clear();
      seconds -= thread_seconds();
      const opened_sequence o = manager.open(text, moves);
      manager.reserve(o.name, idx(text.size()) - o.tokens, moves);
      manager.append(o.name, std::span(text).subspan(std::size_t(o.tokens)));
      manager.close(o.name);
      seconds += thread_seconds();
    }
    const prefix_statistics s = manager.counters().prefixes;
    state.counters["hit_percent"] = 100.0 * double(s.hit) / double(s.asked);
    state.counters["stored_pages"] = double(s.stored_pages);
    state.SetIterationTime(seconds);
  }
}
// Each page hashed, compared with one that lies somewhere, and written there: nothing else.
void replay_baseline(benchmark::State& state, const bench::trace& trace) {
  constexpr std::size_t stored = 320'000 * page_tokens;
  std::vector<token_id> text, store(stored, 1);
  const token_hash hash;
  idx equal = 0;
  for (auto _ : state) {
    std::size_t at = 0;
    double seconds = 0;
    for (const bench::request& r : trace.requests) {
      write_prompt(r, text);
      seconds -= thread_seconds();
      std::uint64_t name = 0;
      for (std::size_t i = 0; i + page_tokens <= text.size(); i += page_tokens, at = (at + page_tokens) % stored) {
        name = hash.page(name, &text[i], page_tokens);
        equal += std::memcmp(&store[at], &text[i], page_tokens * sizeof(token_id)) == 0;
        std::memcpy(&store[at], &text[i], page_tokens * sizeof(token_id));
      }
      benchmark::DoNotOptimize(name);
      seconds += thread_seconds();
    }
    state.SetIterationTime(seconds);
  }
  benchmark::DoNotOptimize(equal);
}

BENCHMARK(pool_random)->Arg(320'000)->Arg(10'000'000);
BENCHMARK(pool_random_baseline)->Arg(320'000)->Arg(10'000'000);
BENCHMARK(churn_1000);
BENCHMARK(decode_append)->Arg(1'000)->Arg(1'000'000);
BENCHMARK(lookup_full_hit)->Arg(10'240)->Arg(320'000)->Arg(10'000'000);
BENCHMARK(lookup_random)
    ->Args({320'000, 1})
    ->Args({10'000'000, 1})
    ->Args({320'000, 32})
    ->Args({10'000'000, 32})
    ->Iterations(500);
BENCHMARK(request_fixed_cost);
BENCHMARK_TEMPLATE(insert_with_eviction, lru);
BENCHMARK_TEMPLATE(insert_with_eviction, aged_lfu);
BENCHMARK_TEMPLATE(longest_pause, lru)->Iterations(20);
BENCHMARK_TEMPLATE(longest_pause, aged_lfu)->Iterations(20);

// Takes --trace=FILE from the arguments.
std::string take_trace(int& argc, char** argv) {
  constexpr std::string_view option = "--trace=";
  std::string path;
  const auto last = std::remove_if(argv + 1, argv + argc, [&](const char* a) {
    if (std::string_view(a).substr(0, option.size()) != option) return false;
    path = a + option.size();
    return true;
  });
  argc = int(last - argv);
  return path;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    bench::trace trace;
    if (const std::string path = take_trace(argc, argv); !path.empty()) {
      trace = bench::read_trace(path);
      const auto add = [&](const char* name, auto body) {
        benchmark::RegisterBenchmark(name, body, trace)->UseManualTime()->Iterations(1)->Unit(benchmark::kSecond);
      };
      add("replay/lru", replay<lru>);
      add("replay/aged_lfu", replay<aged_lfu>);
      add("replay/baseline", replay_baseline);
    }
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
