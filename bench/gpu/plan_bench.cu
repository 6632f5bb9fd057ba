// What planning a step on the device costs: a chain of plans in one CUDA graph, sequences of 1 to 8,192 tokens, 32
// query heads on 8 KV heads.
//   bench_gpu_plan [--runs=N] [--csv=FILE] [--commit=ID] [--benchmark_filter=...]
#include "batch.cuh"
#include "layers.cuh"
#include "options.hpp"
#include "program.cuh"

#include <kvilt/format/floating.hpp>

#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

namespace {

constexpr int plans = 64, kv_heads = 8, q_heads = 32, longest = 8192;

template <class Policy>
void measure(benchmark::State& state, const char* layout, int sequences) {
  const bench::stream stream;
  // NOTE: a plan reads lengths, never pages: the pool may be small.
  const bench::kv_layers<Policy> layers(Policy(), 1, sequences, kv_heads, 16, 1);
  std::mt19937 random(4);
  std::vector<int> lengths(std::size_t(sequences), 0);
  for (int& length : lengths) length = int(random() % longest);
  bench::device_plan plan(stream, layers.view(0), lengths, 1, q_heads);
  const bench::graph chain(stream, [&] {
    for (int i = 0; i < plans; ++i) plan.again(stream, layers.view(0));
  });
  chain.launch();
  stream.wait();
  const bench::stopwatch watch;
  std::vector<double> seconds;
  for (auto _ : state) {
    seconds.push_back(watch.seconds_of(stream, chain) / plans);
    state.SetIterationTime(seconds.back());
  }
  state.SetLabel(std::string(layout) + ',' + std::to_string(sequences));
  state.counters["us"] = 1e6 * bench::median(seconds);
}

template <class Policy>
void add_rows(const char* layout, int runs) {
  for (const int sequences : {1, 64, 1024})
    benchmark::RegisterBenchmark((std::string(layout) + "/sequences:" + std::to_string(sequences)).c_str(),
                                 [=](benchmark::State& s) { measure<Policy>(s, layout, sequences); })
        ->Iterations(runs)
        ->UseManualTime();
}

int run(int argc, char** argv) {
  using namespace kvilt;
  const bench::options o = bench::read_options(argc, argv);
  add_rows<policy<paged<16>, bf16<128>>>("paged16", o.runs);
  add_rows<ring<bf16<128>, bf16<128>, 4096, 4>>("ring4096+4", o.runs);
  bench::run_into_table({{"layout", 10}, {"sequences", 9}, {"us", 7, "%.2f"}}, o);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::guarded("bench_gpu_plan", run, argc, argv);
}
