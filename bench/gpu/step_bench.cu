// A whole decode step of a model of Llama 3 8B's shape with random weights: 32 layers, 32 query heads on 8 KV heads of
// 128, matrices in bf16 by cuBLAS, one CUDA graph a step. For each cache: its memory, a step's time and tokens a
// second, and how much of the step is the cache's: planning, RoPE, append and attention; it is timed with and without.
//   bench_gpu_step [--layers=32] [--batch=16] [--context=8192] [--quick] [--runs=N] [--csv=FILE] [--commit=ID]
// --quick runs 4 layers.
#include "options.hpp"
#include "program.cuh"
#include "step/model.cuh"

#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

namespace {

using bench::attention_shape, bench::step_entry;

class measurement {
 public:
  measurement(const attention_shape& s, int runs) : shape_(s), runs_(runs), model_(stream_, s) {
    without_ = seconds_of(nullptr);
  }

  void operator()(benchmark::State& state, const step_entry& e) {
    const std::unique_ptr<bench::step_cache> cache = e.make(shape_);
    const double seconds = seconds_of(cache.get());
    const bool right = model_.finite();
    if (!right) ++failures_;
    for (auto _ : state) state.SetIterationTime(seconds);
    std::string label = e.name;
    for (const int n : {shape_.layers, shape_.batch, shape_.context}) label += ',' + std::to_string(n);
    state.SetLabel(label + (right ? ",ok" : ",FAIL"));
    state.counters["cache_GB"] = 1e-9 * double(cache->bytes());
    state.counters["weights_GB"] = 1e-9 * double(model_.weight_bytes());
    state.counters["ms"] = 1e3 * seconds;
    state.counters["tokens_s"] = shape_.batch / seconds;
    state.counters["attention_ms"] = 1e3 * (seconds - without_);
    state.counters["of_step"] = 100 * (1 - without_ / seconds);
  }

  int failures() const { return failures_; }

 private:
  double seconds_of(bench::step_cache* cache) {
    model_.step(cache);  // outside of a graph first: cuBLAS loads its kernels
    stream_.wait();
    const bench::graph step(stream_, [&] { model_.step(cache); });
    return bench::median_seconds(stream_, step, runs_);
  }

  attention_shape shape_;
  int runs_;
  bench::stream stream_;
  bench::model model_;
  double without_ = 0;
  int failures_ = 0;
};

int run(int argc, char** argv) {
  attention_shape shape;
  const bench::options o =
      bench::read_options(argc, argv,
                          {{"--layers=", [&](const std::string& text) { shape.layers = bench::number_of(text); }},
                           {"--batch=", [&](const std::string& text) { shape.batch = bench::number_of(text); }},
                           {"--context=", [&](const std::string& text) { shape.context = bench::number_of(text); }}});
  if (o.quick) shape.layers = 4;
  measurement measure(shape, o.runs);
  bench::step_entries entries;
  for (const auto add : {bench::add_fixed_caches, bench::add_paged_caches, bench::add_ring_caches}) add(entries);
  for (const step_entry& e : entries)
    benchmark::RegisterBenchmark(e.name.c_str(), [&measure, e](benchmark::State& state) { measure(state, e); })
        ->Iterations(1)
        ->UseManualTime();
  bench::run_into_table({{"policy", 26},
                         {"layers", 6},
                         {"batch", 5},
                         {"context", 7},
                         {"check", 5},
                         {"cache_GB", 8, "%.2f"},
                         {"weights_GB", 10, "%.2f"},
                         {"ms", 7, "%.3f"},
                         {"tokens_s", 8, "%.0f"},
                         {"attention_ms", 12, "%.3f"},
                         {"of_step", 7, "%.1f"}},
                        o);
  return bench::result_of(measure.failures());
}

}  // namespace

int main(int argc, char** argv) {
  return bench::guarded("bench_gpu_step", run, argc, argv);
}
