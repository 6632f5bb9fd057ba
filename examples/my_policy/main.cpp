// Attention over a cache whose format, layout and variant are a user's own (my_policy.hpp), against the same in fp32.
#include "my_policy.hpp"

#include <kvilt/kvilt.hpp>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

constexpr int q_heads = 8, kv_heads = 2, dim = 64, tokens = 200;

using numbers = std::vector<float>;

numbers noise(int heads, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  numbers x(std::size_t(tokens) * heads * dim);
  for (float& value : x) value = normal(random);
  return x;
}

/// One prefill of random rows: out [tokens][q_heads][dim], and the bytes that a token takes.
template <class Policy>
numbers run(const Policy& policy, double& bytes_per_token) {
  kvilt::cache<Policy> cache({.layers = 1, .kv_heads = kv_heads, .tokens = tokens}, kvilt::host_memory(), policy);
  const kvilt::host host;
  std::vector<unsigned char> workspace(cache.workspace_bytes(host, 1));
  const kvilt::sequence sequence = cache.open();
  const int count = tokens;
  cache.reserve(sequence, count);
  const kvilt::step step = cache.begin(host, {&sequence, 1}, {&count, 1}, workspace);

  numbers q = noise(q_heads, 1), k = noise(kv_heads, 2), v = noise(kv_heads, 3), out(q.size());
  kvilt::append(host, cache.view(0), step, kvilt::packed_rows(k.data(), kv_heads, dim),
                kvilt::packed_rows(v.data(), kv_heads, dim));
  const kvilt::attention attend{mine::fading{0.5f}};
  attend(host, cache.view(0), step, kvilt::packed_rows(q.data(), q_heads, dim),
         kvilt::packed_rows(out.data(), q_heads, dim));
  cache.commit(step);
  bytes_per_token = cache.bytes().bytes_per_token;
  return out;
}

}  // namespace

int main() {
  double exact_bytes = 0, mine_bytes = 0;
  const numbers exact = run(kvilt::policy<kvilt::contiguous, kvilt::fp32<>>(dim), exact_bytes);
  using policy = kvilt::policy<mine::token_major, mine::six_bit>;
  const numbers ours = run(policy(mine::six_bit{dim}, mine::six_bit{dim}), mine_bytes);

  double error = 0, norm = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(double(ours[i]) - exact[i], 2);
    norm += std::pow(double(exact[i]), 2);
  }
  std::printf("6 bit: %.0f bytes a token instead of %.0f, relative error of attention %.3f\n", mine_bytes, exact_bytes,
              std::sqrt(error / norm));
  return std::sqrt(error / norm) < 0.05 ? 0 : 1;
}
