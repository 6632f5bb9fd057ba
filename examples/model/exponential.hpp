#pragma once

#include <bit>
#include <cstdint>

namespace example {

// The polynomial of these coefficients, the highest power's first.
template <typename T, typename... Coefficients>
T horner(T x, Coefficients... coefficients) {
  T sum = 0;
  ((sum = sum * x + coefficients), ...);
  return sum;
}

// exp without branches or calls, so that compilers make vectors of loops over it. exp(x) = 2^n exp(r), with n the nearest
// integer to x / ln 2, and ln 2 in two parts so that r keeps its bits (Cody and Waite, "Software manual for the
// elementary functions", 1980); exp(r) by its series. Right to 2 units in the last place; below the smallest normal
// number's logarithm it stays there, and above the largest's likewise. A NaN stays one.
inline float vector_exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float magic = 0x1.8p23f;  // the last bits of a sum with it are the other summand, rounded
  const float shifted = x * 1.44269504f + magic;
  const float n = shifted - magic;
  const float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  const float sum = horner(r, 1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f);
  return sum * std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) + 127u) << 23);
}

inline double vector_exp(double x) {
  x = x < -708.0 ? -708.0 : x;
  x = x > 709.0 ? 709.0 : x;
  constexpr double magic = 0x1.8p52;
  const double shifted = x * 1.4426950408889634 + magic;
  const double n = shifted - magic;
  const double r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
  const double sum = horner(r, 1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                            1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0);
  return sum * std::bit_cast<double>((std::bit_cast<std::uint64_t>(shifted) + 1023u) << 52);
}

}  // namespace example
