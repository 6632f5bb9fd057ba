#pragma once

#include <cfloat>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

/// Rows that formats were seen to get wrong, and plain random ones.
namespace awkward {

/// Head dims of models; not all are powers of two.
inline constexpr int dims[] = {40, 64, 72, 80, 96, 112, 128, 192, 256};

struct row {
  std::string name;
  std::vector<float> x;
};

inline std::vector<float> constant(int dim, float value) {
  return std::vector<float>(std::size_t(dim), value);
}

/// Numbers from `first` to `last`, evenly spaced.
inline std::vector<float> ramp(int dim, float first, float last) {
  std::vector<float> x(std::size_t(dim), first);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += (last - first) * float(i) / float(dim - 1);
  return x;
}

inline std::vector<float> gaussian(int dim, std::mt19937& random, float sigma = 1) {
  std::normal_distribution<float> normal(0, sigma);
  std::vector<float> x(std::size_t(dim), 0.0f);
  for (float& number : x) number = normal(random);
  return x;
}

/// `x` with one number replaced.
inline std::vector<float> with(std::vector<float> x, std::size_t at, float value) {
  x[at] = value;
  return x;
}

inline std::vector<float> alternating(int dim, float value) {
  std::vector<float> x(std::size_t(dim), value);
  for (std::size_t i = 1; i < x.size(); i += 2) x[i] = -value;
  return x;
}

/// All finite.
inline std::vector<row> finite_rows(int dim) {
  std::mt19937 random(11);
  std::vector<row> rows{
      {"zeros", constant(dim, 0.0f)},
      {"minus zeros", constant(dim, -0.0f)},
      {"zeros of both signs", alternating(dim, 0.0f)},
      {"alone in zeros", with(constant(dim, 0), 7, -3.5f)},
      {"from 1000 to 1001", ramp(dim, 1000, 1001)},
      {"from -1001 to -1000", ramp(dim, -1001, -1000)},
      {"just above zero", ramp(dim, 0.001f, 1)},
      {"outlier", with(gaussian(dim, random), 3, 100)},
      {"negative outlier", with(gaussian(dim, random), 5, -1e5f)},
      {"around a scale between two fp16 subnormals", ramp(dim, -1.06e-5f, 1.06e-5f)},
      {"fp32 subnormals", alternating(dim, 1e-40f)},
      {"sums beyond fp32", alternating(dim, FLT_MAX)},
      {"beyond every scale", with(gaussian(dim, random), 6, 1e30f)},
      {"far below every zero", with(gaussian(dim, random), 6, -1e30f)},
      {"powers of two", {}},
  };
  for (int i = 0; i < dim; ++i) rows.back().x.push_back(std::ldexp(1.0f, i % 40 - 30));
  for (const float value : {1.0f, -1.0f, 1000.1f, -1000.1f, 448.0f, 465.0f, 65504.0f, 65520.0f, 982560.0f, 1e30f,
                            -1e30f, 1e-6f, 1e-7f, -1e-7f, 1e-20f, -1e-20f, FLT_MAX, -FLT_MAX, FLT_MIN})
    rows.push_back({"constant " + std::to_string(value), constant(dim, value)});
  for (const float sigma : {1.0f, 1e-6f, 1e-3f, 30.0f, 3e4f})
    rows.push_back({"gaussian of sigma " + std::to_string(sigma), gaussian(dim, random, sigma)});
  return rows;
}

inline std::vector<row> rows_with_infinities(int dim) {
  std::mt19937 random(12);
  const float infinity = std::numeric_limits<float>::infinity();
  return {{"one infinity", with(gaussian(dim, random), 9, infinity)},
          {"one minus infinity", with(gaussian(dim, random), 0, -infinity)},
          {"infinities alone", alternating(dim, infinity)}};
}

/// One NaN, at `nan_at`.
inline constexpr std::size_t nan_at = 17;
inline std::vector<row> rows_with_nan(int dim) {
  std::mt19937 random(13);
  const float quiet = std::numeric_limits<float>::quiet_NaN(), signalling = std::numeric_limits<float>::signaling_NaN();
  return {{"one NaN", with(gaussian(dim, random), nan_at, quiet)},
          {"one negative NaN", with(gaussian(dim, random), nan_at, -quiet)},
          {"one signalling NaN", with(constant(dim, 0), nan_at, signalling)},
          {"NaN beside infinity", with(constant(dim, std::numeric_limits<float>::infinity()), nan_at, quiet)},
          {"NaN beside 1e30", with(constant(dim, 1e30f), nan_at, quiet)}};
}

inline std::vector<row> all_rows(int dim) {
  std::vector<row> rows = finite_rows(dim);
  for (const auto& more : {rows_with_infinities(dim), rows_with_nan(dim)})
    rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

}  // namespace awkward
