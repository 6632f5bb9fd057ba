// Attention of one decode step on the GPU: a chain of layers, more than any cache holds, in one CUDA graph; all kernels
// of a call are in its time. Beside each row the time of a plain read of as many bytes, in the same run.
//   bench_gpu_decode [--quick] [--runs=N] [--csv=FILE] [--commit=ID] [--benchmark_filter=^bf16/paged16/dim:128/]
// Names are FORMAT/LAYOUT/dim:D/BATCHxCONTEXT/heads:Q:KV/queries:N. Every number is the median of some replays. One KV
// head of each row is compared with double precision over what the cache holds: `check` says ok, FAIL, or none where
// the library has no kernel for it.
#include "ceilings.cuh"
#include "decode/entry.cuh"
#include "options.hpp"
#include "program.cuh"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace {

using bench::decode_entry, bench::decode_shape;

// Beyond what 16-bit outputs lose.
constexpr double largest_error = 5e-3;

// In which others were measured: batch, context, query heads, KV heads.
constexpr decode_shape shapes[] = {{1, 8192, 32, 8},   {16, 8192, 32, 8},  {64, 4096, 32, 8}, {128, 2048, 32, 8},
                                   {1, 131072, 32, 8}, {16, 8192, 32, 32}, {64, 4096, 64, 8}};

struct subject {
  decode_entry what;
  decode_shape shape;

  std::string name() const {
    return what.format + '/' + what.layout + "/dim:" + std::to_string(what.dim) + '/' + shape.name();
  }
  std::string label(const char* checked) const {
    return what.format + ',' + what.layout + ',' + std::to_string(what.dim) + ',' + shape.cells() + ',' + part() + ',' +
           checked;
  }

 private:
  // What the row is there to show.
  const char* part() const {
    if (what.dim != 128) return "dims";
    if (shape.queries > 1) return "queries";
    return std::count(std::begin(shapes), std::end(shapes), shape) > 0 ? "shapes" : "groups";
  }
};

class measurement {
 public:
  explicit measurement(int runs) : ceilings_(stream_, runs) {}

  void operator()(benchmark::State& state, const subject& s) {
    std::unique_ptr<bench::decode_subject> layers;
    try {
      layers = s.what.make(s.shape);
      const double error = layers->error();
      if (!(error < largest_error)) ++failures_;
      measure(state, s, *layers, error);
    } catch (const kvilt::invalid_argument& e) {
      std::fprintf(stderr, "%s: %s\n", s.name().c_str(), e.what());
      for (auto _ : state) state.SetIterationTime(1);
      report(state, s.label("none"), 0, 0, 0, 1, 0);
    }
  }

  int failures() const { return failures_; }

 private:
  void measure(benchmark::State& state, const subject& s, bench::decode_subject& layers, double error) {
    const kvilt::gpu plain = static_cast<cudaStream_t>(stream_);
    const bench::graph chain = chain_of(layers, plain), early = chain_of(layers, plain.with_early_reads());
    for (const bench::graph* once : {&chain, &early}) once->launch();
    stream_.wait();
    std::vector<double> seconds, early_seconds;
    for (auto _ : state) {
      seconds.push_back(watch_.seconds_of(stream_, chain) / layers.layers());
      early_seconds.push_back(watch_.seconds_of(stream_, early) / layers.layers());
      state.SetIterationTime(seconds.back());
    }
    report(state, s.label(error < largest_error ? "ok" : "FAIL"), double(layers.bytes()), bench::median(seconds),
           bench::median(early_seconds), ceilings_.read_seconds(layers.bytes()), error);
  }
  bench::graph chain_of(bench::decode_subject& layers, const kvilt::gpu& exec) const {
    return bench::graph(stream_, [&] {
      for (int layer = 0; layer < layers.layers(); ++layer) layers.attend(exec, layer);
    });
  }

  static void report(benchmark::State& state, const std::string& label, double bytes, double seconds, double early,
                     double read, double error) {
    state.SetLabel(label);
    state.counters["us"] = 1e6 * seconds;
    state.counters["MB"] = 1e-6 * bytes;
    state.counters["GB_s"] = seconds > 0 ? 1e-9 * bytes / seconds : 0;
    state.counters["read_GB_s"] = 1e-9 * bytes / read;
    state.counters["of_read"] = seconds > 0 ? 100 * read / seconds : 0;
    state.counters["early_us"] = 1e6 * early;
    state.counters["early_of_read"] = early > 0 ? 100 * read / early : 0;
    state.counters["error"] = error;
  }

  bench::stream stream_;
  bench::stopwatch watch_;
  bench::ceilings ceilings_;
  int failures_ = 0;
};

std::vector<decode_entry> entries() {
  std::vector<decode_entry> all;
  for (const auto add :
       {bench::add_bf16_fixed, bench::add_bf16_paged, bench::add_e4m3_fixed, bench::add_e4m3_paged, bench::add_q8_fixed,
        bench::add_q8_paged, bench::add_others, bench::add_bf16_dims, bench::add_q8_dims})
    add(all);
  return all;
}

// Rows of one entry.
std::vector<decode_shape> shapes_of(const decode_entry& e, bool quick) {
  const bool main_format = e.format == "bf16" || e.format == "e4m3" || e.format == "q8";
  if (e.dim != 128 || e.format == "q8g32") return {{16, 8192, 32, 8}};
  if (quick) return e.layout == "paged16" ? std::vector<decode_shape>{shapes[0], shapes[1]} : std::vector{shapes[1]};
  std::vector<decode_shape> all(std::begin(shapes), std::end(shapes));
  if (e.layout.starts_with("ring")) std::erase_if(all, [](const decode_shape& s) { return s.context != 8192; });
  if (e.layout != "paged16" || !main_format) return all;
  for (const int group : {1, 5, 7, 8, 16}) all.push_back({16, 8192, 8 * group, 8});
  for (const int queries : {2, 4, 8, 16}) {
    all.push_back({16, 8192, 32, 8, queries});
    all.push_back({64, 4096, 32, 8, queries});
  }
  return all;
}

int run(int argc, char** argv) {
  const bench::options o = bench::read_options(argc, argv);
  measurement measure(o.runs);
  for (const decode_entry& e : entries())
    for (const decode_shape& shape : shapes_of(e, o.quick)) {
      const subject row{e, shape};
      benchmark::RegisterBenchmark(row.name().c_str(), [&measure, row](benchmark::State& s) { measure(s, row); })
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
                         {"part", 7},
                         {"check", 5},
                         {"us", 8, "%.2f"},
                         {"MB", 7, "%.1f"},
                         {"GB_s", 5, "%.0f"},
                         {"read_GB_s", 9, "%.0f"},
                         {"of_read", 7, "%.1f"},
                         {"early_us", 8, "%.2f"},
                         {"early_of_read", 13, "%.1f"},
                         {"error", 7, "%.1e"}},
                        o);
  return bench::result_of(measure.failures());
}

}  // namespace

int main(int argc, char** argv) {
  return bench::guarded("bench_gpu_decode", run, argc, argv);
}
