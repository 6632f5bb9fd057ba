#include "format/affine.hpp"
#include "support/catch.hpp"

#include <kvilt/format/integer.hpp>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

namespace {

using namespace kvilt;
using formats::dims_of;
using formats::half_value;
using formats::record;
using formats::rows_without_nan;

using symmetric = std::tuple<q8<>, q8<dynamic, 32>, q8<dynamic, 64>>;
using asymmetric = std::tuple<q4<>, q4<dynamic, 32>, q4<dynamic, 64>>;

int nibble(const std::vector<unsigned char>& codes, std::size_t i) {
  return i % 2 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
}

/// One group of an int8 row against the formula; x, y: [group].
void judge_symmetric(const float* x, const float* y, const unsigned char* codes, int group, double scale) {
  double largest = 0;
  for (int i = 0; i < group; ++i) largest = std::max(largest, std::fabs(double(x[i])));
  REQUIRE(formats::is_right_scale(scale, largest, 127));
  for (int i = 0; i < group; ++i) {
    const int code = int(codes[i]) - 128;
    const double wanted = std::clamp(double(x[i]) / scale, -127.0, 127.0);
    REQUIRE(std::abs(code) <= 127);
    REQUIRE(std::fabs(code - wanted) <= 0.5 + formats::code_slack);
    REQUIRE(double(y[i]) == code * scale);
    if (largest <= 127.5 * formats::largest_half)
      REQUIRE(std::fabs(x[i] - double(y[i])) <= scale * (0.5 + formats::code_slack));
  }
}

template <class F>
std::vector<float> round_trip(const F& f, const std::vector<float>& x) {
  return record<F>(f, x).template decoded<8>();
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("integer: int8 is round(x / s), s as stored, within half of s", "[format]", symmetric) {
  for (const int dim : dims_of<TestType>())
    for (const awkward::row& row : rows_without_nan(dim)) {
      INFO(row.name << ", dim " << dim);
      const TestType format(dim);
      record<TestType> r(format, row.x);
      const std::vector<unsigned char> codes = r.codes();
      const std::vector<float> y = r.template decoded<8>();
      for (int g = 0; g < dim / format.group(); ++g) {
        const int first = g * format.group();
        judge_symmetric(row.x.data() + first, y.data() + first, codes.data() + first, format.group(),
                        half_value(r.param(g)));
      }
    }
}

TEMPLATE_LIST_TEST_CASE("integer: int4 is round((x - z) / s), s and z as stored, within half of s", "[format]",
                        asymmetric) {
  for (const int dim : dims_of<TestType>())
    for (const awkward::row& row : rows_without_nan(dim)) {
      INFO(row.name << ", dim " << dim);
      formats::judge_affine_row<4>(TestType(dim), row.x);
    }
}

TEST_CASE("integer: int8 rounds ties to the even code", "[format]") {
  std::vector<float> x = awkward::constant(64, 127);  // a scale of 1
  for (int i = 0; i < 60; ++i) x[std::size_t(i)] = float(i - 30) + 0.5f;
  record<q8<>> r(q8<>(64), x);
  REQUIRE(half_value(r.param(0)) == 1);
  for (int i = 0; i < 60; ++i) CHECK(int(r.codes()[std::size_t(i)]) - 128 == int(std::nearbyint(x[std::size_t(i)])));
}

TEST_CASE("integer: int4 rounds ties to the even code", "[format]") {
  std::vector<float> x = awkward::ramp(64, 0, 15);  // a scale of 1, a zero of 0
  for (int i = 1; i < 15; ++i) x[std::size_t(i)] = float(i) + 0.5f;
  record<q4<>> r(q4<>(64), x);
  REQUIRE(half_value(r.param(0)) == 1);
  REQUIRE(half_value(r.param(1)) == 0);
  for (int i = 1; i < 15; ++i) CHECK(nibble(r.codes(), std::size_t(i)) == int(std::nearbyint(x[std::size_t(i)])));
}

TEST_CASE("integer: layout of codes and params", "[format]") {
  std::vector<float> x = awkward::constant(64, 0);
  x[0] = 127, x[1] = -127, x[2] = 5;
  record<q8<>> eight(q8<>(64), x);
  CHECK(eight.codes()[0] == 255);
  CHECK(eight.codes()[1] == 1);
  CHECK(eight.codes()[2] == 133);
  CHECK(eight.codes()[63] == 128);
  CHECK(eight.param(0) == 0x3c00);

  x[0] = 15, x[1] = 0, x[2] = 3, x[3] = 9;
  record<q4<>> four(q4<>(64), x);
  CHECK(four.codes()[0] == 0x0f);  // the even dim in the low nibble
  CHECK(four.codes()[1] == 0x93);
  CHECK(four.param(0) == 0x3c00);
  CHECK(four.param(1) == 0);
}

TEST_CASE("integer: an outlier costs its own group alone", "[format]") {
  std::mt19937 random(21);
  const std::vector<float> calm = awkward::gaussian(128, random), x = awkward::with(calm, 40, 1000);
  const std::vector<float> eight = round_trip(q8<dynamic, 32>(128), x), four = round_trip(q4<dynamic, 32>(128), x);
  const std::vector<float> calm_eight = round_trip(q8<dynamic, 32>(128), calm);
  const std::vector<float> calm_four = round_trip(q4<dynamic, 32>(128), calm);
  for (std::size_t i = 0; i < x.size(); ++i)
    if (i / 32 != 40 / 32) {
      CHECK(eight[i] == calm_eight[i]);
      CHECK(four[i] == calm_four[i]);
    }
}

TEST_CASE("integer: constants far from zero survive int4", "[format]") {
  for (const float x : {1.0f, -1.0f, 1000.1f, -1000.1f, 448.0f, 465.0f})
    for (const float y : round_trip(q4<>(72), awkward::constant(72, x))) REQUIRE(y == Approx(x).epsilon(1e-4));
}

TEST_CASE("integer: what is beyond the largest scale saturates", "[format]") {
  for (const float y : round_trip(q8<>(64), awkward::constant(64, 1e30f))) REQUIRE(y == 127 * 65504.0f);
  for (const float y : round_trip(q8<>(64), awkward::constant(64, -1e30f))) REQUIRE(y == -127 * 65504.0f);
  for (const float y : round_trip(q4<>(64), awkward::constant(64, 1e30f)))
    REQUIRE(y == Approx(15 * 65504.0).epsilon(1e-3));
  for (const float y : round_trip(q4<>(64), awkward::constant(64, -1e30f))) REQUIRE(y == Approx(-65504.0));
}

TEST_CASE("integer: error of Gaussian rows", "[format]") {
  CHECK(formats::relative_rmse(q8<>(64), 2000, 1) == Approx(0.0059).epsilon(0.05));
  CHECK(formats::relative_rmse(q8<>(128), 2000, 2) == Approx(0.0065).epsilon(0.05));
  CHECK(formats::relative_rmse(q8<>(256), 2000, 3) == Approx(0.0070).epsilon(0.05));
  CHECK(formats::relative_rmse(q4<>(64), 2000, 4) == Approx(0.089).epsilon(0.05));
  CHECK(formats::relative_rmse(q4<>(128), 2000, 5) == Approx(0.100).epsilon(0.05));
  CHECK(formats::relative_rmse(q4<>(256), 2000, 6) == Approx(0.109).epsilon(0.05));
  CHECK(formats::relative_rmse(q4<dynamic, 32>(128), 2000, 7) == Approx(0.078).epsilon(0.05));
}
