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
  // Both are x / (1 + exp(-z)): SiLU with z = x, and GELU's tanh form with z = 2 sqrt(2 / pi) (x + 0.044715 x^3), since
  // (1 + tanh(z / 2)) / 2 = 1 / (1 + exp(-z)).
  const bool silu = kind == gate_activation::silu;
  const float linear = silu ? 1.0f : 1.5957691216f;
  const float cubic = silu ? 0.0f : 1.5957691216f * 0.044715f;
  for (std::size_t i = 0; i < n; ++i) {
    const float x = gate[i];
    gate[i] = x / (1.0f + vector_exp(-x * (linear + cubic * x * x))) * up[i];
  }
}

}  // namespace example
