#pragma once

#include "format/awkward_rows.hpp"

#include <kvilt/format/format.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

/// What the tests of formats share.
namespace formats {

/// Dims of `awkward::dims` that a format takes.
template <class F>
std::vector<int> dims_of() {
  std::vector<int> taken;
  for (const int dim : awkward::dims) {
    const F f(dim);
    bool takes = f.dim() == dim;
    if constexpr (requires { f.group(); }) takes = takes && dim % f.group() == 0;
    if (takes) taken.push_back(dim);
  }
  return taken;
}

/// Memory of one record between guards.
template <class F>
class record {
 public:
  static constexpr unsigned char guard = 0xa5;
  static constexpr std::size_t margin = 64;
  float scale = 0.05f;  // of formats that are handed theirs

  explicit record(const F& f)
      : format_(f),
        codes_(std::size_t(f.code_bytes()) + 2 * margin, guard),
        params_(std::size_t(f.param_bytes()) + 2 * margin, guard) {}
  record(const F& f, const std::vector<float>& x) : record(f) { format_.encode(x.data(), ref()); }

  kvilt::row_ref ref() {
    if constexpr (kvilt::has_static_scale<F>)
      return {codes_.data() + margin, reinterpret_cast<unsigned char*>(&scale), 0};
    else
      return {codes_.data() + margin, params_.data() + margin, 0};
  }
  std::vector<unsigned char> codes() const { return inner(codes_); }
  std::vector<unsigned char> params() const { return inner(params_); }
  std::uint16_t param(int i) {
    std::uint16_t bits;
    std::memcpy(&bits, ref().params + 2 * i, sizeof bits);
    return bits;
  }
  bool guards_hold() const { return edges_hold(codes_) && edges_hold(params_); }

  /// Decoded `N` at a time; what is left of the row comes 8 at a time.
  template <int N>
  std::vector<float> decoded() {
    std::vector<float> x;
    float part[N], eighth[8];
    int first = 0;
    for (; first + N <= format_.dim(); first += N) {
      format_.template decode<N>(ref(), first, part);
      x.insert(x.end(), part, part + N);
    }
    for (; first < format_.dim(); first += 8) {
      format_.template decode<8>(ref(), first, eighth);
      x.insert(x.end(), eighth, eighth + 8);
    }
    return x;
  }

 private:
  static std::vector<unsigned char> inner(const std::vector<unsigned char>& bytes) {
    return {bytes.begin() + margin, bytes.end() - margin};
  }
  static bool edges_hold(const std::vector<unsigned char>& bytes) {
    const auto is_guard = [](unsigned char byte) { return byte == guard; };
    return std::all_of(bytes.begin(), bytes.begin() + margin, is_guard) &&
           std::all_of(bytes.end() - margin, bytes.end(), is_guard);
  }

  F format_;
  std::vector<unsigned char> codes_, params_;
};

/// The value of finite fp16 bits by definition.
inline double half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude = std::ldexp(exponent ? mantissa + 1024 : mantissa, std::max(exponent, 1) - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

/// The distance of fp16 numbers at a magnitude.
inline double half_step(double x) {
  return std::ldexp(1.0, std::max(x == 0 ? -14 : std::ilogb(x), -14) - 10);
}

inline constexpr double largest_half = 65504, smallest_half = 0x1p-24;

/// Is `scale` the fp16 number to choose for a row that spans `range`, of which `last_code` scales are to cover all
/// but half a scale? The nearest, unless that one is zero, infinite or too small for its row.
inline bool is_right_scale(double scale, double range, double last_code) {
  const double slack = 1e-6, wanted = range / last_code;  // fp32 arithmetic may tip a tie
  if (scale < smallest_half || scale > largest_half) return false;
  if (scale == largest_half && wanted >= largest_half * (1 - slack)) return true;
  if (scale * (last_code + 0.5) < range * (1 - slack)) return false;
  const double below = scale - half_step(std::nextafter(scale, 0.0));
  return scale == smallest_half || std::fabs(scale - wanted) <= half_step(wanted) / 2 * (1 + 1e-3) + slack * wanted ||
         below * (last_code + 0.5) <= range * (1 + slack);
}

/// Root mean square error relative to the rows' own, over Gaussian rows that are taken through the format.
template <class F>
double relative_rmse(const F& f, int rows, unsigned seed) {
  std::mt19937 random(seed);
  double error = 0, whole = 0;
  for (int i = 0; i < rows; ++i) {
    const std::vector<float> x = awkward::gaussian(f.dim(), random);
    const std::vector<float> y = record<F>(f, x).template decoded<8>();
    for (std::size_t d = 0; d < x.size(); ++d) {
      error += std::pow(double(x[d]) - y[d], 2);
      whole += std::pow(double(x[d]), 2);
    }
  }
  return std::sqrt(error / whole);
}

}  // namespace formats
