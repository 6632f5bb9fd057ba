#pragma once

#include "session.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace support {

// Attention over everything that a layer has been given, by its definition. By pointers, along which unoptimised builds
// go several times as fast.
class brute_force {
 public:
  explicit brute_force(const example::session_shape& shape)
      : s_(shape), keys_(shape.layers.size()), values_(shape.layers.size()) {}

  void operator()(int layer, int tokens, float* q, float* k, const float* v, float* out) {
    const auto dim = static_cast<std::size_t>(s_.head_dim), heads = static_cast<std::size_t>(s_.kv_heads);
    const example::layer_attention& kind = s_.layers[static_cast<std::size_t>(layer)];
    std::vector<float>& keys = keys_[static_cast<std::size_t>(layer)];
    std::vector<float>& values = values_[static_cast<std::size_t>(layer)];
    for (int t = 0; t < tokens; ++t) {
      const std::size_t position = keys.size() / (heads * dim);
      for (std::size_t h = 0; h < heads; ++h, k += dim, v += dim) {
        kind.turn.apply(k, static_cast<kvilt::idx>(position));
        keys.insert(keys.end(), k, k + dim);
        values.insert(values.end(), v, v + dim);
      }
      const std::size_t window = kind.window > 0 ? static_cast<std::size_t>(kind.window) : position + 1;
      const std::size_t oldest = position + 1 - std::min(window, position + 1);
      for (int h = 0; h < s_.q_heads; ++h, q += dim, out += dim) {
        kind.turn.apply(q, static_cast<kvilt::idx>(position));
        attend(q, static_cast<std::size_t>(h / (s_.q_heads / s_.kv_heads)), oldest, keys, values, out);
      }
    }
  }

  // The largest magnitudes of a layer's K or V, of each head.
  std::vector<float> key_range(std::size_t layer) const { return range(keys_[layer]); }
  std::vector<float> value_range(std::size_t layer) const { return range(values_[layer]); }

 private:
  std::vector<float> range(const std::vector<float>& rows) const {
    const auto dim = static_cast<std::size_t>(s_.head_dim), heads = static_cast<std::size_t>(s_.kv_heads);
    std::vector<float> largest(heads);
    for (std::size_t i = 0; i < rows.size(); ++i)
      largest[i / dim % heads] = std::max(largest[i / dim % heads], std::abs(rows[i]));
    return largest;
  }

  void attend(const float* q, std::size_t head, std::size_t oldest, const std::vector<float>& keys,
              const std::vector<float>& values, float* out) const {
    const auto dim = static_cast<std::size_t>(s_.head_dim), heads = static_cast<std::size_t>(s_.kv_heads);
    std::vector<double> mixed(dim);
    double sum = 0;
    double* const to = mixed.data();
    for (std::size_t t = oldest; t < keys.size() / (heads * dim); ++t) {
      const float *const key = &keys[(t * heads + head) * dim], *const value = &values[(t * heads + head) * dim];
      double dot = 0;
      for (std::size_t i = 0; i < dim; ++i) dot += double(q[i]) * double(key[i]);
      const double weight = std::exp(dot / std::sqrt(double(dim)));
      sum += weight;
      for (std::size_t i = 0; i < dim; ++i) to[i] += weight * double(value[i]);
    }
    for (std::size_t i = 0; i < dim; ++i) out[i] = static_cast<float>(to[i] / sum);
  }

  example::session_shape s_;
  std::vector<std::vector<float>> keys_, values_;  // of each layer [tokens][kv_heads][head_dim]
};

}  // namespace support
