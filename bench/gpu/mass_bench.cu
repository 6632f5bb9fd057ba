// Column sums of attention on the GPU: a chain of layers whose keys are more than any cache holds, in one CUDA graph.
// They read K alone, once for every 32 query rows at most: beside each row the time of one plain read of as many bytes,
// in the same run.
//   bench_gpu_mass [--quick] [--runs=N] [--csv=FILE] [--commit=ID] [--benchmark_filter=^bf16/]
// Names are FORMAT/LAYOUT/BATCHxCONTEXT/heads:Q:KV/queries:N. Every number is the median of some replays. One KV head
// of each row is compared with double precision over what the cache holds: `check` says ok or FAIL.
#include "batch.cuh"
#include "ceilings.cuh"
#include "decode/entry.cuh"
#include "layers.cuh"
#include "options.hpp"
#include "program.cuh"
#include "random.cuh"
#include "reference.hpp"

#include <kvilt/kvilt.cuh>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace {

using bench::decode_shape, kvilt::idx;

// Of queries that are rounded for narrow keys.
constexpr double largest_error = 5e-3;

/// Full caches of pages of 16 tokens, and a step of their newest tokens.
template <class Format>
class filled_keys {
  using policy = kvilt::policy<kvilt::paged<16>, Format>;
  using number = kvilt::bfloat16;

 public:
  explicit filled_keys(const decode_shape& s)
      : shape_(s),
        layers_(policy(), count(), s.batch, s.kv_heads, s.context, s.queries),
        plan_(stream_, layers_.view(0), s.batch, s.context - s.queries, s.queries, s.q_heads),
        q_(bench::random_array<number>(rows() * dim, 5)),
        out_(rows() * dim),
        lse_(rows()),
        sums_(idx(s.batch) * s.kv_heads * s.context) {
    for (int layer = 0; layer < count(); ++layer)
      bench::fill_rows(stream_, layers_.view(layer), lengths(), s.batch, std::uint64_t(layer));
    sums_.fill(0);
    attend(count() - 1);
    stream_.wait();
  }

  const bench::stream& stream() const { return stream_; }
  /// Of the keys of one layer: codes and params.
  idx bytes() const {
    return idx(shape_.batch) * shape_.context * shape_.kv_heads * (Format().code_bytes() + Format().param_bytes());
  }
  // 1 GiB at least, so that what a layer has is in no cache when its turn comes again.
  int count() const { return int(std::max<idx>(kvilt::ceil_div(idx(1) << 30, bytes()), 2)); }

  void add_columns(const kvilt::gpu& exec, int layer) {
    kvilt::column_mass(exec, attend_, layers_.view(layer), plan_.step(), q(), lse(),
                       kvilt::packed_rows(sums_.data(), shape_.kv_heads, shape_.context));
  }

  /// Of one KV head of a sequence in the last layer, whose log-sum-exps these are.
  double error() {
    sums_.fill(0);
    add_columns(stream_, count() - 1);
    stream_.wait();
    const int sequence = shape_.batch / 2, head = shape_.kv_heads - 1;
    const std::vector<float> all = sums_.copied();
    const idx first = (idx(sequence) * shape_.kv_heads + head) * shape_.context;
    return bench::relative_error(std::span(all).subspan(std::size_t(first), std::size_t(shape_.context)),
                                 exact_sums(sequence, head));
  }

 private:
  static constexpr int dim = Format::get();

  idx rows() const { return idx(shape_.batch) * shape_.queries * shape_.q_heads; }
  kvilt::lengths lengths() const {
    const idx after = shape_.context, before = after - shape_.queries;
    return {before, after, before, after};
  }
  kvilt::rows<number> q() const { return kvilt::packed_rows(q_.data(), shape_.q_heads, dim); }
  kvilt::natural_lse lse() const { return {lse_.data(), shape_.q_heads}; }
  void attend(int layer) {
    attend_(kvilt::gpu(stream_), layers_.view(layer), plan_.step(), q(),
            kvilt::packed_rows(out_.data(), shape_.q_heads, dim), lse());
  }

  std::vector<double> exact_sums(int sequence, int head) const {
    bench::device_array<float> keys(idx(shape_.context) * dim), values(idx(shape_.context) * dim);
    bench::decode_rows_kernel<<<64, 128, 0, stream_>>>(layers_.view(count() - 1), lengths(), sequence, head,
                                                       keys.data(), values.data());
    bench::check(cudaGetLastError(), "a launch");
    stream_.wait();
    const std::vector<float> k = keys.copied();
    const std::vector<number> queries = q_.copied();
    const int group = shape_.q_heads / shape_.kv_heads;
    std::vector<double> sums(std::size_t(shape_.context), 0.0);
    for (int query = 0; query < shape_.queries; ++query)
      for (int i = 0; i < group; ++i) {
        const idx row = (idx(sequence) * shape_.queries + query) * shape_.q_heads + head * group + i;
        add_weights(std::span(queries).subspan(std::size_t(row * dim), dim), k,
                    std::size_t(shape_.context - shape_.queries + query + 1), sums);
      }
    return sums;
  }
  /// What a query gives to the first `seen` keys.
  static void add_weights(std::span<const number> q, const std::vector<float>& k, std::size_t seen,
                          std::vector<double>& sums) {
    std::vector<double> weights(seen, 0.0);
    double sum = 0;
    for (std::size_t t = 0; t < seen; ++t) {
      double score = 0;
      for (std::size_t d = 0; d < q.size(); ++d) score += double(kvilt::load(q[d])) * double(k[t * q.size() + d]);
      weights[t] = std::exp(score / std::sqrt(double(q.size())));
      sum += weights[t];
    }
    for (std::size_t t = 0; t < seen; ++t) sums[t] += weights[t] / sum;
  }

  decode_shape shape_;
  bench::stream stream_;
  bench::kv_layers<policy> layers_;
  bench::device_plan plan_;
  kvilt::attention<kvilt::causal> attend_{kvilt::causal{}};
  bench::device_array<number> q_, out_;  // [batch][queries][q heads][dim]
  bench::device_array<float> lse_;       // [batch][queries][q heads]
  bench::device_array<float> sums_;      // [batch][kv heads][context]
};

class measurement {
 public:
  explicit measurement(int runs) : runs_(runs), ceilings_(stream_, runs) {}

  template <class Format>
  void measure(benchmark::State& state, const std::string& label, const decode_shape& shape) {
    filled_keys<Format> keys(shape);
    const double error = keys.error();
    if (!(error < largest_error)) ++failures_;
    const double seconds = seconds_of(keys, kvilt::gpu(keys.stream())),
                 early = seconds_of(keys, kvilt::gpu(keys.stream()).with_early_reads());
    for (auto _ : state) state.SetIterationTime(seconds);
    const double bytes = double(keys.bytes()), read = ceilings_.read_seconds(keys.bytes());
    state.SetLabel(label + (error < largest_error ? ",ok" : ",FAIL"));
    state.counters["us"] = 1e6 * seconds;
    state.counters["MB"] = 1e-6 * bytes;
    state.counters["GB_s"] = 1e-9 * bytes / seconds;
    state.counters["read_GB_s"] = 1e-9 * bytes / read;
    state.counters["of_read"] = 100 * read / seconds;
    state.counters["early_us"] = 1e6 * early;
    state.counters["early_of_read"] = 100 * read / early;
    state.counters["error"] = error;
  }

  int failures() const { return failures_; }

 private:
  /// Of one layer.
  template <class Keys>
  double seconds_of(Keys& keys, const kvilt::gpu& exec) const {
    const bench::graph chain(keys.stream(), [&] {
      for (int layer = 0; layer < keys.count(); ++layer) keys.add_columns(exec, layer);
    });
    return bench::median_seconds(keys.stream(), chain, runs_) / keys.count();
  }

  int runs_;
  bench::stream stream_;
  bench::ceilings ceilings_;
  int failures_ = 0;
};

template <class Format>
void add_rows(measurement& m, bool quick) {
  std::vector<decode_shape> shapes{{64, 4096, 32, 8, 1}, {16, 8192, 32, 8, 1}};
  if (!quick)
    for (const int queries : {4, 32}) shapes.push_back({16, 8192, 32, 8, queries});
  for (const decode_shape& s : shapes) {
    const std::string format = Format::name(), label = format + ",paged16," + s.cells(),
                      name = format + "/paged16/" + s.name();
    benchmark::RegisterBenchmark(name.c_str(),
                                 [&m, label, s](benchmark::State& state) { m.measure<Format>(state, label, s); })
        ->Iterations(1)
        ->UseManualTime();
  }
}

int run(int argc, char** argv) {
  const bench::options o = bench::read_options(argc, argv);
  measurement m(o.runs);
  add_rows<kvilt::bf16<128>>(m, o.quick);
  add_rows<kvilt::q8<128>>(m, o.quick);
  add_rows<kvilt::q4<128>>(m, o.quick);
  bench::run_into_table({{"format", 7},
                         {"layout", 10},
                         {"batch", 5},
                         {"context", 7},
                         {"q_heads", 7},
                         {"kv_heads", 8},
                         {"queries", 7},
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
  return bench::result_of(m.failures());
}

}  // namespace

int main(int argc, char** argv) {
  return bench::guarded("bench_gpu_mass", run, argc, argv);
}
