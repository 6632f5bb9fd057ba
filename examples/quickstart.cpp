// A cache in 8 bit, a prompt of 40 tokens, then 8 decode steps: what an engine's inner loop looks like with kvilt.
#include <kvilt/kvilt.hpp>

#include <cstdio>
#include <random>
#include <vector>

int main() {
  constexpr int layers = 2, q_heads = 8, kv_heads = 2, dim = 64, prompt = 40, steps = 8;

  // Pages of 16 tokens; K in rotated int8, V in int4; the first 4 and the last 64 tokens in 16 bit.
  using kv = kvilt::policy<kvilt::paged<16>, kvilt::rotated<kvilt::q8<dim>>, kvilt::q4<dim>, kvilt::keep_all, 4, 64>;
  const kvilt::cache_shape shape{
      .layers = layers, .kv_heads = kv_heads, .sequences = 4, .tokens = 4096, .max_step = prompt};
  kvilt::cache<kv> cache(shape, kvilt::host_memory());

  const kvilt::host host;
  std::vector<unsigned char> workspace(cache.workspace_bytes(host, shape.sequences));
  const kvilt::rope_table rope(dim, 10000.0, kvilt::rope_pairs::half_split);
  const kvilt::attention attend{kvilt::causal{}};

  // Stands for a model: its projections would fill these.
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto noise = [&](int tokens, int heads) {
    std::vector<float> x(std::size_t(tokens) * heads * dim);
    for (float& value : x) value = normal(random);
    return x;
  };

  const kvilt::sequence sequence = cache.open();
  cache.reserve(sequence, prompt + steps);  // throws out_of_pages, nothing changed
  for (int s = 0; s <= steps; ++s) {
    const int tokens = s == 0 ? prompt : 1;  // prefill, then decode: the same calls
    const kvilt::step step = cache.begin(host, {&sequence, 1}, {&tokens, 1}, workspace);
    std::vector<float> out(std::size_t(tokens) * q_heads * dim);
    for (int layer = 0; layer < layers; ++layer) {
      std::vector<float> q = noise(tokens, q_heads), k = noise(tokens, kv_heads), v = noise(tokens, kv_heads);
      const auto q_rows = kvilt::packed_rows(q.data(), q_heads, dim);
      kvilt::append(host, cache.view(layer), step, q_rows, kvilt::packed_rows(k.data(), kv_heads, dim),
                    kvilt::packed_rows(v.data(), kv_heads, dim), rope);
      attend(host, cache.view(layer), step, q_rows, kvilt::packed_rows(out.data(), q_heads, dim));
    }
    cache.commit(step);
    std::printf("%3lld tokens, first output %+.4f\n", static_cast<long long>(cache.length(sequence)), double(out[0]));
  }
  std::printf("%.0f bytes a token; fp16 would take %d\n", cache.bytes().bytes_per_token,
              layers * kv_heads * dim * 2 * 2);
}
