// An engine whose policies are compiled in one file and chosen by name when it starts:
//   engine_split [policy]…     for example: engine_split paged32:q8rot:q4:sinks4:tail64
#include "engine.hpp"

#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

constexpr int q_heads = 8, kv_heads = 2, dim = 64, tokens = 200;

// 200 decode steps over rows that a model would make; the mean of the last output.
template <class Policy>
double decode(const Policy& policy) {
  const kvilt::host host;
  kvilt::cache<Policy> cache({.layers = 1, .kv_heads = kv_heads, .tokens = 512}, kvilt::host_memory(), policy);
  std::vector<unsigned char> workspace(cache.workspace_bytes(host, 1));
  const kvilt::rope_table rope(dim, 10000.0, kvilt::rope_pairs::half_split);
  const example::causal_attention attend;
  const kvilt::sequence sequence = cache.open();
  std::vector<float> q(q_heads * dim), k(kv_heads * dim), v(kv_heads * dim), out(q_heads * dim);
  const int one = 1;
  for (int t = 0; t < tokens; ++t) {
    for (int d = 0; d < q_heads * dim; ++d) q[std::size_t(d)] = std::sin(0.7f * float(d + t));
    for (int d = 0; d < kv_heads * dim; ++d) {
      k[std::size_t(d)] = std::cos(0.3f * float(d - t));
      v[std::size_t(d)] = 1 + 0.1f * std::sin(float(d * t));
    }
    cache.reserve(sequence, 1);
    const kvilt::step step = cache.begin(host, {&sequence, 1}, {&one, 1}, workspace);
    const auto q_rows = kvilt::packed_rows(q.data(), q_heads, dim);
    kvilt::append(host, cache.view(0), step, q_rows, kvilt::packed_rows(k.data(), kv_heads, dim),
                  kvilt::packed_rows(v.data(), kv_heads, dim), rope);
    attend(host, cache.view(0), step, q_rows, kvilt::packed_rows(out.data(), q_heads, dim));
    cache.commit(step);
  }
  double sum = 0;
  for (const float x : out) sum += double(x);
  return sum / double(out.size());
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> names(argv + 1, argv + argc);
  if (names.empty()) names = {"contiguous:fp16", "paged16:q8rot:q4:sinks4:tail64", "contiguous:q8:window128"};
  try {
    for (const std::string& name : names) {
      const double mean = kvilt::dispatch<example::policies>(name, dim, [](const auto& p) { return decode(p); });
      std::printf("%-32s mean of the last output %.4f\n", name.c_str(), mean);
      if (std::abs(mean - 1) > 0.05) return 1;  // the values are about 1, so any softmax of them is
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
