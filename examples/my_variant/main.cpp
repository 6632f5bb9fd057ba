// Two masks of a user's own (my_variant.hpp): documents packed into one sequence give what each gives alone, and a
// block-sparse mask gives what the softmax over the keys that it keeps gives.
#include "my_variant.hpp"

#include <kvilt/kvilt.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

constexpr int heads = 4, dim = 32, tokens = 300;

using numbers = std::vector<float>;  // [tokens][heads][dim]

numbers noise(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  numbers x(std::size_t(tokens) * heads * dim);
  for (float& value : x) value = normal(random);
  return x;
}

/// Tokens [first, first + count) as a sequence of their own, prefilled in one step under a variant.
template <class Variant>
numbers attend(const numbers& q, const numbers& k, const numbers& v, int first, int count, const Variant& variant) {
  using policy = kvilt::policy<kvilt::paged<16>, kvilt::fp32<>>;
  kvilt::cache<policy> cache({.layers = 1, .kv_heads = heads, .tokens = tokens, .max_step = tokens},
                             kvilt::host_memory(), policy(dim));
  const kvilt::host host;
  std::vector<unsigned char> workspace(cache.workspace_bytes(host, 1));
  const kvilt::sequence sequence = cache.open();
  cache.reserve(sequence, count);
  const kvilt::step step = cache.begin(host, {&sequence, 1}, {&count, 1}, workspace);
  const auto rows = [&](const numbers& x) {
    return kvilt::packed_rows(x.data() + std::ptrdiff_t(first) * heads * dim, heads, dim);
  };
  numbers out(std::size_t(count) * heads * dim);
  kvilt::append(host, cache.view(0), step, rows(k), rows(v));
  kvilt::attention{variant}(host, cache.view(0), step, rows(q), kvilt::packed_rows(out.data(), heads, dim));
  cache.commit(step);
  return out;
}

double difference(const numbers& a, const numbers& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(double(a[i]) - double(b[i])));
  return largest;
}

double packed_documents(const numbers& q, const numbers& k, const numbers& v) {
  const int bounds[] = {0, 70, 71, 200, tokens};
  std::vector<kvilt::idx> start;
  for (int i = 0; i + 1 < 5; ++i) start.insert(start.end(), std::size_t(bounds[i + 1] - bounds[i]), bounds[i]);
  const numbers packed = attend(q, k, v, 0, tokens, mine::documents{start.data()});
  numbers alone;
  for (int i = 0; i + 1 < 5; ++i) {
    const numbers one = attend(q, k, v, bounds[i], bounds[i + 1] - bounds[i], kvilt::causal{});
    alone.insert(alone.end(), one.begin(), one.end());
  }
  return difference(packed, alone);
}

/// Each block sees the first block, its own and the one before: against the softmax written out.
double sparse_blocks(const numbers& q, const numbers& k, const numbers& v) {
  constexpr int size = 32, blocks = (tokens + size - 1) / size;
  std::vector<unsigned char> seen(blocks * blocks);
  for (int i = 0; i < blocks; ++i)
    for (const int j : {0, i - 1, i})
      if (j >= 0) seen[std::size_t(i * blocks + j)] = 1;
  const mine::block_sparse mask = {seen.data(), blocks, size};
  const numbers got = attend(q, k, v, 0, tokens, kvilt::compose(kvilt::causal{}, mask));
  numbers want(got.size());
  const auto at = [](int token, int head) { return std::size_t(token * heads + head) * dim; };
  for (int t = 0; t < tokens; ++t)
    for (int head = 0; head < heads; ++head) {
      double sum = 0, out[dim] = {};
      for (int p = 0; p <= t; ++p) {
        if (p / size != 0 && p / size < t / size - 1) continue;
        double dot = 0;
        for (int d = 0; d < dim; ++d) dot += double(q[at(t, head) + std::size_t(d)]) * k[at(p, head) + std::size_t(d)];
        const double weight = std::exp(dot / std::sqrt(double(dim)));
        sum += weight;
        for (int d = 0; d < dim; ++d) out[d] += weight * v[at(p, head) + std::size_t(d)];
      }
      for (int d = 0; d < dim; ++d) want[at(t, head) + std::size_t(d)] = float(out[d] / sum);
    }
  return difference(got, want);
}

}  // namespace

int main() {
  const numbers q = noise(1), k = noise(2), v = noise(3);
  const double documents = packed_documents(q, k, v), sparse = sparse_blocks(q, k, v);
  std::printf("4 documents packed into one sequence: within %.0e of each alone\n", documents);
  std::printf("blocks that see the first, the last and their own: within %.0e of the softmax written out\n", sparse);
  return documents < 1e-5 && sparse < 1e-5 ? 0 : 1;
}
