// Append on the GPU: bf16 rows of K and V, quantised and written into a cache of 8 KV heads of 128; a chain of layers,
// each with rows of its own, in one CUDA graph. Beside each row the time of a plain copy that moves as many bytes.
//   bench_gpu_append [--quick] [--runs=N] [--csv=FILE] [--commit=ID] [--benchmark_filter=^q8/paged16/]
// Names are FORMAT/LAYOUT/SEQUENCESxTOKENS/rope:0|1. One KV head of each row is compared with what was to be written.
#include "batch.cuh"
#include "ceilings.cuh"
#include "layers.cuh"
#include "options.hpp"
#include "program.cuh"
#include "reference.hpp"

#include <kvilt/kvilt.cuh>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

namespace {

using kvilt::idx;
using number = kvilt::bfloat16;  // of the caller's rows

constexpr int kv_heads = 8, q_heads = 32, dim = 128;

struct append_shape {
  int sequences, tokens;
  idx before;  // tokens that are in the cache

  idx rows() const { return idx(sequences) * tokens; }
};

// What rounding may change, |x - decoded| / |x|.
template <class Format>
double largest_error() {
  const int bits = 8 * Format().code_bytes() / dim;
  return bits == 16 ? 5e-3 : bits == 4 ? 0.25 : 0.06;
}

template <class Policy>
class appended_layers {
 public:
  appended_layers(const append_shape& s, bool turns)
      : shape_(s),
        table_(dim, 5e5, kvilt::rope_pairs::half_split),
        turns_(turns ? copied_turns(table_) : bench::device_array<std::uint64_t>()),
        layers_(Policy(), count(s), s.sequences, kv_heads, s.before + s.tokens, s.tokens),
        plan_(stream_, layers_.view(0), s.sequences, s.before, s.tokens, q_heads),
        k_(bench::random_array<number>(count(s) * numbers(), 11)),
        v_(bench::random_array<number>(count(s) * numbers(), 12)) {
    stream_.wait();
  }

  static int count(const append_shape& s) {
    return int(std::clamp<idx>(kvilt::ceil_div(idx(1) << 30, bytes(s)), 8, 64));
  }
  // Read and written.
  static idx bytes(const append_shape& s) {
    return s.rows() * kv_heads * (bench::row_bytes(Policy()) + 2 * dim * idx(sizeof(number)));
  }

  void append(const kvilt::gpu& exec, int layer) {
    const auto k = kvilt::packed_rows(k_.data() + layer * numbers(), kv_heads, dim);
    const auto v = kvilt::packed_rows(v_.data() + layer * numbers(), kv_heads, dim);
    if (turns_.size())
      kvilt::append(exec, layers_.view(layer), plan_.step(), k, v, turn(turns_.data()));
    else
      kvilt::append(exec, layers_.view(layer), plan_.step(), k, v);
  }

  // Of what the last layer holds for one KV head of one sequence.
  double error() {
    const int layer = count(shape_) - 1, sequence = shape_.sequences / 2, head = kv_heads - 1;
    append(stream_, layer);
    stream_.wait();
    const idx after = shape_.before + shape_.tokens;
    bench::device_array<float> k(after * dim), v(after * dim);
    k.fill(0xff), v.fill(0xff);
    bench::decode_rows_kernel<<<64, 128, 0, stream_>>>(layers_.view(layer),
                                                       kvilt::lengths{shape_.before, after, shape_.before, after},
                                                       sequence, head, k.data(), v.data());
    bench::check(cudaGetLastError(), "a launch");
    stream_.wait();
    return std::max(error_of(k.copied(), k_.copied(), layer, sequence, head, turns_.size() > 0),
                    error_of(v.copied(), v_.copied(), layer, sequence, head, false));
  }

  const bench::stream& stream() const { return stream_; }

 private:
  idx numbers() const { return shape_.rows() * kv_heads * dim; }
  static bench::device_array<std::uint64_t> copied_turns(const kvilt::rope_table& table) {
    const kvilt::rope turn = table;
    return bench::device_array<std::uint64_t>(std::vector<std::uint64_t>(turn.turns, turn.turns + turn.dims / 2));
  }
  kvilt::rope turn(const std::uint64_t* turns) const {
    kvilt::rope r = table_;
    r.turns = turns;
    return r;
  }
  // The worst row's.
  double error_of(const std::vector<float>& kept, const std::vector<number>& given, int layer, int sequence, int head,
                  bool turned) const {
    double worst = 0;
    for (int i = 0; i < shape_.tokens; i += std::max(shape_.tokens / 64, 1)) {
      const idx row = ((idx(layer) * shape_.sequences + sequence) * shape_.tokens + i) * kv_heads + head;
      std::vector<float> x;
      for (int d = 0; d < dim; ++d) x.push_back(kvilt::load(given[std::size_t(row * dim + d)]));
      if (turned) kvilt::rope(table_).apply(x.data(), shape_.before + i);
      const std::vector<double> exact(x.begin(), x.end());
      worst = std::max(worst, bench::relative_error(std::span(kept).subspan((shape_.before + i) * dim, dim), exact));
    }
    return worst;
  }

  append_shape shape_;
  bench::stream stream_;
  kvilt::rope_table table_;
  bench::device_array<std::uint64_t> turns_;  // [dim / 2], or none
  bench::kv_layers<Policy> layers_;
  bench::device_plan plan_;
  bench::device_array<number> k_, v_;  // [layer][sequence][token][head][dim]
};

class measurement {
 public:
  explicit measurement(int runs) : ceilings_(stream_, runs) {}

  template <class Policy>
  void measure(benchmark::State& state, std::string label, const append_shape& s, bool turns) {
    appended_layers<Policy> layers(s, turns);
    const double error = layers.error();
    const int count = layers.count(s);
    const bench::graph chain(layers.stream(), [&] {
      for (int layer = 0; layer < count; ++layer) layers.append(layers.stream(), layer);
    });
    chain.launch();
    layers.stream().wait();
    std::vector<double> seconds;
    for (auto _ : state) {
      seconds.push_back(watch_.seconds_of(layers.stream(), chain) / count);
      state.SetIterationTime(seconds.back());
    }
    const bool right = error < largest_error<typename Policy::k_format>();
    if (!right) ++failures_;
    const double bytes = double(layers.bytes(s)), time = bench::median(seconds);
    state.SetLabel(label + (right ? ",ok" : ",FAIL"));
    state.counters["us"] = 1e6 * time;
    state.counters["MB"] = 1e-6 * bytes;
    state.counters["GB_s"] = 1e-9 * bytes / time;
    state.counters["copy_GB_s"] = 1e-9 * bytes / ceilings_.copy_seconds(layers.bytes(s));
    state.counters["of_copy"] = 100 * ceilings_.copy_seconds(layers.bytes(s)) / time;
    state.counters["error"] = error;
  }

  int failures() const { return failures_; }

 private:
  bench::stream stream_;
  bench::stopwatch watch_;
  bench::ceilings ceilings_;
  int failures_ = 0;
};

template <class Layout, class Format>
void add_rows(const char* layout, measurement& m, const bench::options& o) {
  using policy = kvilt::policy<Layout, Format>;
  std::vector<append_shape> shapes{{1, 8192, 0}, {64, 1, 48}};
  if (!o.quick) shapes.insert(shapes.end(), {{16, 512, 512}, {256, 1, 48}});
  for (const append_shape& s : shapes)
    for (const bool turns : {false, true}) {
      const std::string format = Format::name(), sequences = std::to_string(s.sequences);
      const std::string tokens = std::to_string(s.tokens), rope = std::to_string(int(turns));
      const std::string name = format + '/' + layout + '/' + sequences + 'x' + tokens + "/rope:" + rope;
      const std::string label = format + ',' + layout + ',' + sequences + ',' + tokens + ',' + rope;
      benchmark::RegisterBenchmark(
          name.c_str(), [&m, label, s, turns](benchmark::State& state) { m.measure<policy>(state, label, s, turns); })
          ->Iterations(o.runs)
          ->UseManualTime();
    }
}

template <class Format>
void add_format(measurement& m, const bench::options& o) {
  add_rows<kvilt::contiguous, Format>("contiguous", m, o);
  add_rows<kvilt::paged<16>, Format>("paged16", m, o);
}

int run(int argc, char** argv) {
  const bench::options o = bench::read_options(argc, argv);
  measurement m(o.runs);
  add_format<kvilt::bf16<dim>>(m, o);
  add_format<kvilt::e4m3<dim>>(m, o);
  add_format<kvilt::q8<dim>>(m, o);
  add_format<kvilt::q4<dim>>(m, o);
  bench::run_into_table({{"format", 6},
                         {"layout", 10},
                         {"sequences", 9},
                         {"tokens", 6},
                         {"rope", 4},
                         {"check", 5},
                         {"us", 7, "%.2f"},
                         {"MB", 6, "%.1f"},
                         {"GB_s", 5, "%.0f"},
                         {"copy_GB_s", 9, "%.0f"},
                         {"of_copy", 7, "%.1f"},
                         {"error", 7, "%.1e"}},
                        o);
  return bench::result_of(m.failures());
}

}  // namespace

int main(int argc, char** argv) {
  return bench::guarded("bench_gpu_append", run, argc, argv);
}
