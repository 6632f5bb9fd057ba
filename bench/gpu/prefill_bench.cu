// Attention of prompts on the GPU: whole ones, chunks behind a text, batches of short ones; causal, a chain of layers in
// one CUDA graph.
//   bench_gpu_prefill [--quick] [--runs=N] [--csv=FILE] [--commit=ID] [--benchmark_filter=^bf16/paged16/dim:128/]
// Names are FORMAT/LAYOUT/dim:D/BATCHxCONTEXT/heads:Q:KV/queries:N. TFLOP_s counts two products of every query with every
// key that it sees. Every time is the median of some replays. Rows of one KV head are compared with double precision over
// what the cache holds.
#include "decode/entry.cuh"
#include "options.hpp"
#include "prefill/entries.cuh"
#include "program.cuh"

#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

namespace {

using bench::decode_entry, bench::decode_shape;

// Beyond what 16-bit outputs and weights lose.
constexpr double largest_error = 1e-2;

constexpr decode_shape shapes[] = {{1, 2048, 32, 8, 2048}, {1, 8192, 32, 8, 8192}, {1, 16384, 32, 8, 16384},
                                   {1, 16896, 32, 8, 512}, {8, 1024, 32, 8, 1024}, {1, 8192, 32, 32, 8192},
                                   {1, 66048, 32, 8, 512}};

double flops_of(const decode_entry& e, const decode_shape& s) {
  const double first = double(s.context - s.queries + 1), keys = s.queries * (first + double(s.context)) / 2;
  return 4.0 * e.dim * keys * s.q_heads * s.batch;
}

class measurement {
 public:
  void operator()(benchmark::State& state, const decode_entry& e, const decode_shape& s) {
    const std::unique_ptr<bench::decode_subject> layers = e.make(s);
    const double error = layers->error();
    const bool ok = error < largest_error;
    if (!ok) ++failures_;
    const bench::graph chain(stream_, [&] {
      for (int layer = 0; layer < layers->layers(); ++layer) layers->attend(stream_, layer);
    });
    chain.launch();
    stream_.wait();
    std::vector<double> seconds;
    for (auto _ : state) {
      seconds.push_back(watch_.seconds_of(stream_, chain) / layers->layers());
      state.SetIterationTime(seconds.back());
    }
    state.SetLabel(e.format + ',' + e.layout + ',' + std::to_string(e.dim) + ',' + s.cells() + (ok ? ",ok" : ",FAIL"));
    state.counters["us"] = 1e6 * bench::median(seconds);
    state.counters["TFLOP_s"] = 1e-12 * flops_of(e, s) / bench::median(seconds);
    state.counters["error"] = error;
  }
  int failures() const { return failures_; }

 private:
  bench::stream stream_;
  bench::stopwatch watch_;
  int failures_ = 0;
};

std::vector<decode_shape> shapes_of(const decode_entry& e, bool quick) {
  if (quick) return {shapes[1]};
  if (e.dim != 128) return {shapes[2]};
  return {std::begin(shapes), std::end(shapes)};
}

int run(int argc, char** argv) {
  const bench::options o = bench::read_options(argc, argv);
  measurement measure;
  std::vector<decode_entry> entries;
  for (const auto add : {bench::add_prefill_16_bit, bench::add_prefill_codes, bench::add_prefill_dims}) add(entries);
  for (const decode_entry& e : entries)
    for (const decode_shape& s : shapes_of(e, o.quick)) {
      const std::string name = e.format + '/' + e.layout + "/dim:" + std::to_string(e.dim) + '/' + s.name();
      benchmark::RegisterBenchmark(name.c_str(), [&measure, e, s](benchmark::State& state) { measure(state, e, s); })
          ->Iterations(o.runs)
          ->UseManualTime();
    }
  bench::run_into_table({{"format", 7},
                         {"layout", 10},
                         {"dim", 4},
                         {"batch", 5},
                         {"context", 7},
                         {"q_heads", 7},
                         {"kv_heads", 8},
                         {"queries", 7},
                         {"check", 5},
                         {"us", 9, "%.1f"},
                         {"TFLOP_s", 7, "%.1f"},
                         {"error", 7, "%.1e"}},
                        o);
  return bench::result_of(measure.failures());
}

}  // namespace

int main(int argc, char** argv) {
  return bench::guarded("bench_gpu_prefill", run, argc, argv);
}
