#include "format/record.hpp"
#include "support/catch.hpp"

#include <kvilt/format/fp8.hpp>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

namespace {

using namespace kvilt;
using formats::dims_of;
using formats::half_value;
using formats::record;

/// Bits of the mantissa, the smallest normal number's exponent, the largest number.
template <class Format, int Mantissa, int LowestExponent, int Largest>
struct kind {
  using format = Format;
  static constexpr double largest = Largest;

  static double value(unsigned char code) {
    const int exponent = (code & 0x7f) >> Mantissa, mantissa = code & ((1 << Mantissa) - 1);
    const double magnitude = std::ldexp(exponent ? mantissa + (1 << Mantissa) : mantissa,
                                        std::max(exponent, 1) + LowestExponent - 1 - Mantissa);
    return code & 0x80 ? -magnitude : magnitude;
  }
  /// The distance of codes at a magnitude of at most the largest.
  static double step(double x) {
    return std::ldexp(1.0, std::max(x == 0 ? LowestExponent : std::ilogb(x), LowestExponent) - Mantissa);
  }
  static constexpr double relative = 1.0 / (2 << Mantissa);
};
using kinds = std::tuple<kind<e4m3<>, 3, -6, 448>, kind<e5m2<>, 2, -14, 57344>, kind<e4m3<dynamic, 32>, 3, -6, 448>,
                         kind<e5m2<dynamic, 64>, 2, -14, 57344>>;

double largest_magnitude(const float* x, int n) {
  double largest = 0;
  for (int i = 0; i < n; ++i) largest = std::max(largest, std::fabs(double(x[i])));
  return largest;
}

/// One group of a row against the formula; x, y, codes: [group].
template <class Kind>
void judge(const float* x, const float* y, const unsigned char* codes, int group, double scale) {
  const double largest = largest_magnitude(x, group);
  REQUIRE(formats::is_right_scale(scale, largest, Kind::largest));
  for (int i = 0; i < group; ++i) {
    const double wanted = std::clamp(double(x[i]) / scale, -Kind::largest, Kind::largest);
    REQUIRE(std::fabs(Kind::value(codes[i])) <= Kind::largest);
    REQUIRE(std::fabs(Kind::value(codes[i]) - wanted) <= Kind::step(wanted) / 2 * (1 + 1e-4));
    REQUIRE(double(y[i]) == Kind::value(codes[i]) * scale);
    if (largest <= Kind::largest * formats::largest_half)
      REQUIRE(std::fabs(double(x[i]) - double(y[i])) <=
              std::max(std::fabs(double(x[i])) * Kind::relative, scale * Kind::step(0) / 2) * (1 + 1e-4));
  }
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("fp8: codes are the nearest to x over the stored scale", "[format]", kinds) {
  using format = typename TestType::format;
  for (const int dim : dims_of<format>())
    for (const auto& rows : {awkward::finite_rows(dim), awkward::rows_with_infinities(dim)})
      for (const awkward::row& row : rows) {
        INFO(row.name << ", dim " << dim);
        const format f(dim);
        record<format> r(f, row.x);
        const std::vector<unsigned char> codes = r.codes();
        const std::vector<float> y = r.template decoded<8>();
        for (int g = 0; g < dim / f.group(); ++g) {
          const int first = g * f.group();
          judge<TestType>(row.x.data() + first, y.data() + first, codes.data() + first, f.group(),
                          half_value(r.param(g)));
        }
      }
}

TEST_CASE("fp8: beyond the largest code of the largest scale numbers saturate", "[format]") {
  for (const float sign : {1.0f, -1.0f}) {
    const std::vector<float> x = awkward::constant(64, 1e30f * sign);
    for (const float y : record<e4m3<>>(e4m3<>(64), x).decoded<8>()) REQUIRE(y == sign * 448 * 65504);
    for (const float y : record<e5m2<>>(e5m2<>(64), x).decoded<8>()) REQUIRE(y == sign * 57344 * 65504);
  }
}

TEST_CASE("fp8: 448 and 465 come back", "[format]") {
  for (const float x : {448.0f, 465.0f, -465.0f})
    for (const float y : record<e4m3<>>(e4m3<>(72), awkward::constant(72, x)).decoded<8>())
      REQUIRE(double(y) == Approx(x).epsilon(0.001));
}

TEST_CASE("fp8: an outlier costs its own group alone", "[format]") {
  std::mt19937 random(21);
  const e4m3<512, 128> f;
  const std::vector<float> calm = awkward::gaussian(512, random), x = awkward::with(calm, 140, 1e6f);
  const std::vector<float> got = record<e4m3<512, 128>>(f, x).decoded<32>();
  const std::vector<float> want = record<e4m3<512, 128>>(f, calm).decoded<32>();
  for (std::size_t i = 0; i < x.size(); ++i)
    if (i / 128 != 140 / 128) CHECK(got[i] == want[i]);
}

TEST_CASE("fp8: error of Gaussian rows", "[format]") {
  for (const int dim : {64, 128, 256}) {
    CHECK(formats::relative_rmse(e4m3<>(dim), 2000, 1) == Approx(0.0255).epsilon(0.05));
    CHECK(formats::relative_rmse(e5m2<>(dim), 2000, 2) == Approx(0.051).epsilon(0.05));
  }
}
