#include "format/record.hpp"
#include "support/catch.hpp"

#include <kvilt/format/fp8.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

namespace {

using namespace kvilt;
using formats::half_value;
using formats::record;

double code_value(unsigned char code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude = std::ldexp(exponent ? mantissa + 8 : mantissa, std::max(exponent, 1) - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

/// The distance of E4M3 numbers at a magnitude of at most 448.
double code_step(double x) {
  return std::ldexp(1.0, std::max(x == 0 ? -6 : std::ilogb(x), -6) - 3);
}

double largest_magnitude(const std::vector<float>& x) {
  double largest = 0;
  for (const float number : x) largest = std::max(largest, std::fabs(double(number)));
  return largest;
}

}  // namespace

TEST_CASE("fp8: codes are the nearest to x over the stored scale", "[format]") {
  for (const int dim : awkward::dims)
    for (const auto& rows : {awkward::finite_rows(dim), awkward::rows_with_infinities(dim)})
      for (const awkward::row& row : rows) {
        INFO(row.name << ", dim " << dim);
        record<e4m3<>> r(e4m3<>(dim), row.x);
        const double scale = half_value(r.param(0));
        REQUIRE(formats::is_right_scale(scale, largest_magnitude(row.x), 448));
        const std::vector<unsigned char> codes = r.codes();
        const std::vector<float> y = r.decoded<8>();
        for (std::size_t i = 0; i < y.size(); ++i) {
          const double wanted = std::clamp(double(row.x[i]) / scale, -448.0, 448.0);
          REQUIRE((codes[i] & 0x7f) < 0x7f);
          REQUIRE(std::fabs(code_value(codes[i]) - wanted) <= code_step(wanted) / 2 * (1 + 1e-4));
          REQUIRE(double(y[i]) == code_value(codes[i]) * scale);
        }
      }
}

TEST_CASE("fp8: relative error is a sixteenth, down to 2^-6 scales", "[format]") {
  for (const int dim : awkward::dims)
    for (const awkward::row& row : awkward::finite_rows(dim)) {
      if (largest_magnitude(row.x) > 448.0 * 65504) continue;  // saturates
      INFO(row.name << ", dim " << dim);
      record<e4m3<>> r(e4m3<>(dim), row.x);
      const double scale = half_value(r.param(0));
      const std::vector<float> y = r.decoded<8>();
      for (std::size_t i = 0; i < y.size(); ++i) {
        const double x = row.x[i];
        REQUIRE(std::fabs(x - y[i]) <= std::max(std::fabs(x) * 0x1p-4, scale * 0x1p-10) * (1 + 1e-4));
      }
    }
}

TEST_CASE("fp8: beyond 448 of the largest scale numbers saturate", "[format]") {
  for (const float sign : {1.0f, -1.0f})
    for (const float y : record<e4m3<>>(e4m3<>(64), awkward::constant(64, 1e30f * sign)).decoded<8>())
      REQUIRE(y == sign * 448 * 65504);
}

TEST_CASE("fp8: 448 and 465 come back", "[format]") {
  for (const float x : {448.0f, 465.0f, -465.0f})
    for (const float y : record<e4m3<>>(e4m3<>(72), awkward::constant(72, x)).decoded<8>())
      REQUIRE(double(y) == Approx(x).epsilon(0.001));
}

TEST_CASE("fp8: error of Gaussian rows", "[format]") {
  for (const int dim : {64, 128, 256})
    CHECK(formats::relative_rmse(e4m3<>(dim), 2000, 1) == Approx(0.0255).epsilon(0.05));
}
