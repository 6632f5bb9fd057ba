#include "calibrate.hpp"

#include "policies.hpp"

#include <kvilt/cache/cache.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace example {
namespace {

float widened(float range, const float* row, int dim) {
  for (int i = 0; i < dim; ++i) range = std::max(range, std::abs(row[i]));
  return range;
}

}  // namespace

std::vector<layer_ranges> ranges_over(transformer& model, const session_shape& shape, std::span<const int> tokens) {
  const auto heads = std::size_t(shape.kv_heads);
  const std::vector<float> none(heads);
  std::vector<layer_ranges> ranges(shape.layers.size(), {none, none});
  const auto cache = all_policies().front().open(shape);
  std::vector<float> hidden;
  kvilt::in_chunks(kvilt::idx(tokens.size()), shape.max_step, [&](kvilt::idx first, int count) {
    const auto attention = [&](int layer, int, float* q, float* k, const float* v, float* out) {
      cache->attend(shape.exec, layer, q, k, v, out);
      layer_ranges& seen = ranges[std::size_t(layer)];
      for (int t = 0; t < count; ++t)
        for (std::size_t h = 0; h < heads; ++h, k += shape.head_dim, v += shape.head_dim) {
          shape.layers[std::size_t(layer)].turn.apply(k, first + t);
          seen.k[h] = widened(seen.k[h], k, shape.head_dim);
          seen.v[h] = widened(seen.v[h], v, shape.head_dim);
        }
    };
    cache->begin(count, count);
    model.forward(tokens.subspan(std::size_t(first), std::size_t(count)), attention, hidden);
    cache->commit();
  });
  return ranges;
}

}  // namespace example
