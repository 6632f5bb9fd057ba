#pragma once

#include "model_config.hpp"

#include <cstddef>
#include <span>

namespace example {

// out = x / sqrt(mean(x^2) + eps) * weight, all of the weight's size; x and out may be the same.
void rms_norm(const float* x, std::span<const float> weight, float eps, float* out);

// gate = activation(gate) * up, of `n` numbers each.
void apply_gate(gate_activation kind, float* gate, const float* up, std::size_t n);

}  // namespace example
