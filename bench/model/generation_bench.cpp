// When does caching pay? A prompt of 16 tokens is answered by N tokens, with a cache and by computing the whole prefix
// again for each token: bench_model_generation --model=FILE.gguf
#include "host_decoder.hpp"
#include "policies.hpp"

#include <kvilt/core/thread_pool.hpp>

#include <benchmark/benchmark.h>

#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int prompt_tokens = 16, most_tokens = prompt_tokens + 64;

struct setup {
  explicit setup(const std::string& path)
      : threads(int(std::thread::hardware_concurrency())),
        pool(threads),
        host(pool),
        model(std::make_shared<example::gguf_file>(path), host),
        ropes(example::ropes_of(model.config())) {
    for (const example::policy_entry& entry : example::choose_policies({"fp16"}))
      if (entry.name == "fp16")
        cache = entry.open(example::shape_for(model.config(), ropes, host, most_tokens, most_tokens));
    prompt.resize(prompt_tokens);
    std::iota(prompt.begin(), prompt.end(), 1000);
  }

  int threads;
  kvilt::thread_pool pool;
  kvilt::host host;
  example::transformer model;
  std::vector<kvilt::rope_table> ropes;
  std::unique_ptr<example::session> cache;
  std::vector<int> prompt;
};

void with_cache(benchmark::State& state, setup& s) {
  for (auto _ : state) {
    s.cache->restart();
    example::host_decoder decoder(s.model, *s.cache, s.host);
    int token = decoder.feed(s.prompt);
    for (long n = 1; n < state.range(0); ++n) token = decoder.feed(std::vector{token});
    benchmark::DoNotOptimize(token);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void recomputed(benchmark::State& state, setup& s) {
  for (auto _ : state) {
    std::vector<int> text = s.prompt;
    for (long n = 0; n < state.range(0); ++n) {
      s.cache->restart();
      example::host_decoder decoder(s.model, *s.cache, s.host);
      text.push_back(decoder.feed(text));
    }
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

}  // namespace

int main(int argc, char** argv) {
  std::string path;
  std::vector<char*> arguments;
  for (char* argument : std::vector<char*>(argv, argv + argc)) {
    const std::string text = argument;
    if (text.starts_with("--model="))
      path = text.substr(8);
    else
      arguments.push_back(argument);
  }
  if (path.empty()) {
    std::fprintf(stderr, "--model=FILE.gguf is needed\n");
    return 2;
  }
  setup s(path);
  int count = int(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  for (const auto& [name, run] : {std::pair{"with_cache", &with_cache}, std::pair{"recomputed", &recomputed}})
    benchmark::RegisterBenchmark(name, [&s, run = run](benchmark::State& state) { run(state, s); })
        ->Arg(1)
        ->Arg(2)
        ->Arg(4)
        ->Arg(16)
        ->Arg(64)
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  benchmark::RunSpecifiedBenchmarks();
}
