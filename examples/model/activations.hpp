#pragma once

#include "model_config.hpp"

#include <cstddef>
#include <span>

namespace example {

// out = x / sqrt(mean(x^2) + eps) * weight, all of the weight's size; x and out may be the same.
void rms_norm(const float* x, std::span<const float> weight, float eps, float* out);

// x / (1 + exp(-x (linear + cubic x^2))): SiLU, and GELU's tanh form, since (1 + tanh(z / 2)) / 2 = 1 / (1 + exp(-z)) with
// z = 2 sqrt(2 / pi) (x + 0.044715 x^3).
struct gate_curve {
  float linear = 1.0f, cubic = 0.0f;

  constexpr explicit gate_curve(gate_activation kind) {
    if (kind == gate_activation::gelu_tanh) linear = 1.5957691216f, cubic = 1.5957691216f * 0.044715f;
  }
};

// gate = activation(gate) * up, of `n` numbers each.
void apply_gate(gate_activation kind, float* gate, const float* up, std::size_t n);

}  // namespace example
