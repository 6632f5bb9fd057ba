#include "activations.hpp"

#include "exponential.hpp"

#include <array>
#include <cmath>

namespace example {
namespace {

// The sum in 16 partial ones, so that the compiler may use vectors without leave to reorder sums.
float sum_of_squares(const float* x, std::size_t n) {
  constexpr std::size_t lanes = 16;
  std::array<float, lanes> partial{};
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane) partial[lane] += x[i + lane] * x[i + lane];
  }
  float sum = 0.0f;
  for (; i < n; ++i) sum += x[i] * x[i];
  for (const float p : partial) sum += p;
  return sum;
}

}  // namespace

void rms_norm(const float* x, std::span<const float> weight, float eps, float* out) {
  const std::size_t n = weight.size();
  const float scale = 1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps);
  for (std::size_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

void apply_gate(gate_activation kind, float* gate, const float* up, std::size_t n) {
  const float linear = gate_curve(kind).linear, cubic = gate_curve(kind).cubic;
  for (std::size_t i = 0; i < n; ++i) {
    const float x = gate[i];
    gate[i] = x / (1.0f + vector_exp(-x * (linear + cubic * x * x))) * up[i];
  }
}

}  // namespace example
