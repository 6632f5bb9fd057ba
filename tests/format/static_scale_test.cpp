#include "format/record.hpp"
#include "support/catch.hpp"

#include <kvilt/format/rotate.hpp>
#include <kvilt/format/static_scale.hpp>

#include <cmath>
#include <tuple>
#include <vector>

namespace {

using namespace kvilt;

/// What a code is nearest to, by brute force: the values that all 256 codes decode to at a scale of 1.
template <class F>
std::vector<double> values_of() {
  std::vector<double> values;
  const float one = 1;
  for (int code = 0; code < 256; ++code) {
    unsigned char codes[8] = {static_cast<unsigned char>(code)};
    float out[8];
    F(8).decode({codes, const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(&one)), 0}, 0, out);
    if (std::isfinite(out[0])) values.push_back(out[0]);
  }
  std::sort(values.begin(), values.end());
  return values;
}

double nearest_distance(const std::vector<double>& values, double x) {
  const auto above = std::lower_bound(values.begin(), values.end(), x);
  const double up = above == values.end() ? INFINITY : std::fabs(*above - x);
  return above == values.begin() ? up : std::min(up, std::fabs(*(above - 1) - x));
}

using kinds = std::tuple<e4m3_static<>, e5m2_static<>, q8_static<>>;

template <class F>
std::vector<float> taken_through(int dim, float scale, const std::vector<float>& x) {
  formats::record<F> r{F(dim)};
  r.scale = scale;
  F(dim).encode(x.data(), r.ref());
  REQUIRE(r.guards_hold());
  REQUIRE(r.scale == scale);
  return r.template decoded<8>();
}

}  // namespace

TEST_CASE("static_scale: every code has the value of its format", "[format]") {
  const std::vector<double> four = values_of<e4m3_static<>>(), five = values_of<e5m2_static<>>(),
                            whole = values_of<q8_static<>>();
  CHECK(four.size() == 254);
  CHECK(four.back() == 448);
  CHECK(five.size() == 2 * 124);
  CHECK(five.back() == 57344);
  CHECK(whole.size() == 255);
  CHECK(whole.front() == -127);
  CHECK(whole.back() == 127);
}

TEMPLATE_LIST_TEST_CASE("static_scale: codes are the nearest to x over the caller's scale, and saturate", "[format]",
                        kinds) {
  const std::vector<double> values = values_of<TestType>();
  for (const int dim : {40, 128})
    for (const float scale : {1.0f, 0.03125f, 0.0371f, 12.5f, 1e-5f, 0x1p-126f, 0x1p112f})
      for (const auto& rows : {awkward::finite_rows(dim), awkward::rows_with_infinities(dim)})
        for (const awkward::row& row : rows) {
          INFO(row.name << ", dim " << dim << ", scale " << scale);
          const std::vector<float> y = taken_through<TestType>(dim, scale, row.x);
          for (std::size_t i = 0; i < y.size(); ++i) {
            const double wanted = std::clamp(double(row.x[i]) / double(scale), values.front(), values.back());
            REQUIRE(std::fabs(double(y[i]) / double(scale) - wanted) <=
                    nearest_distance(values, wanted) + 1e-6 * std::fabs(wanted));
          }
        }
}

TEMPLATE_LIST_TEST_CASE("static_scale: a NaN stays one, and stays alone", "[format]", kinds) {
  for (const int dim : awkward::dims)
    for (const awkward::row& row : awkward::rows_with_nan(dim)) {
      INFO(row.name << ", dim " << dim);
      const std::vector<float> y = taken_through<TestType>(dim, 0.05f, row.x);
      for (std::size_t i = 0; i < y.size(); ++i) REQUIRE(std::isnan(y[i]) == (i == awkward::nan_at));
    }
}

TEST_CASE("static_scale: scales are the caller's, and take no bytes of a record", "[format]") {
  STATIC_REQUIRE(has_static_scale<e4m3_static<>>);
  STATIC_REQUIRE(has_static_scale<rotated<q8_static<64>>>);
  CHECK(q8_static<>(72).code_bytes() == 72);
  CHECK(q8_static<>(72).param_bytes() == 0);
  CHECK(e4m3_static<128>().param_bytes() == 0);
}

TEST_CASE("static_scale: error of Gaussian rows at a scale for six sigma", "[format]") {
  // A step of s / sqrt(12), s = 6 / 127, and next to nothing beyond six sigma.
  std::mt19937 random(3);
  double eight = 0, four = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::vector<float> x = awkward::gaussian(128, random);
    const std::vector<float> y = taken_through<q8_static<>>(128, 6.0f / 127, x);
    const std::vector<float> z = taken_through<e4m3_static<>>(128, 6.0f / 448, x);
    for (std::size_t d = 0; d < x.size(); ++d)
      eight += std::pow(double(x[d]) - y[d], 2) / 256000, four += std::pow(double(x[d]) - z[d], 2) / 256000;
  }
  CHECK(std::sqrt(eight) == Approx(6.0 / 127 / std::sqrt(12.0)).epsilon(0.05));
  CHECK(std::sqrt(four) == Approx(0.0255).epsilon(0.05));
}
