#include "format/record.hpp"
#include "support/catch.hpp"

#include <kvilt/format/floating.hpp>
#include <kvilt/format/integer.hpp>
#include <kvilt/format/rotate.hpp>

#include <bit>
#include <cmath>
#include <type_traits>
#include <vector>

namespace {

using namespace kvilt;

std::vector<float> turned(std::vector<float> x) {
  hadamard::forward(x.data(), int(x.size()));
  return x;
}

/// The block-diagonal Walsh-Hadamard matrix by its definition.
double matrix(int row, int column, int block) {
  if (row / block != column / block) return 0;
  const bool odd = std::popcount(unsigned(row % block & column % block)) % 2 == 1;
  return (odd ? -1 : 1) / std::sqrt(double(block));
}

double norm(const std::vector<float>& x) {
  double sum = 0;
  for (const float number : x) sum += double(number) * number;
  return std::sqrt(sum);
}

/// Error of one row that is rotated, encoded, decoded and turned back, relative to the row.
template <class F>
double error_of(const F& f, const std::vector<float>& x) {
  std::vector<float> y = x;
  rotation_of<F>::forward(y.data(), f.dim());
  y = formats::record<F>(f, y).template decoded<8>();
  rotation_of<F>::inverse(y.data(), f.dim());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] -= x[i];
  return norm(y) / norm(x);
}

}  // namespace

TEST_CASE("rotate: the transform is the matrix, in blocks of the power of two that divides the dim", "[format]") {
  const int blocks[][2] = {{40, 8},   {64, 64},   {72, 8},   {80, 16},  {96, 32},
                           {112, 16}, {128, 128}, {192, 64}, {256, 256}};
  for (const auto& [dim, block] : blocks)
    for (int column = 0; column < dim; ++column) {
      const std::vector<float> y = turned(awkward::with(awkward::constant(dim, 0), std::size_t(column), 1));
      for (int row = 0; row < dim; ++row)
        REQUIRE(double(y[std::size_t(row)]) == Approx(matrix(row, column, block)).margin(1e-7));
    }
}

TEST_CASE("rotate: lengths and angles stay, and the transform undoes itself", "[format]") {
  std::mt19937 random(31);
  for (const int dim : awkward::dims) {
    const std::vector<float> x = awkward::gaussian(dim, random), other = awkward::gaussian(dim, random);
    const std::vector<float> y = turned(x), z = turned(other);
    CHECK(norm(y) == Approx(norm(x)).epsilon(1e-6));
    double before = 0, after = 0;
    for (std::size_t i = 0; i < x.size(); ++i) before += double(x[i]) * other[i], after += double(y[i]) * z[i];
    CHECK(after == Approx(before).margin(1e-5));
    std::vector<float> back = y;
    hadamard::inverse(back.data(), dim);
    for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(double(back[i]) == Approx(x[i]).margin(1e-5));
  }
}

TEST_CASE("rotate: an outlier is spread over its row", "[format]") {
  const std::vector<float> y = turned(awkward::with(awkward::constant(128, 0), 77, 16));
  for (const float number : y) CHECK(std::fabs(number) == Approx(std::sqrt(2.0)));
}

TEST_CASE("rotate: rows with outliers lose less in rotated formats", "[format]") {
  std::mt19937 random(32);
  for (const int dim : {64, 80, 128, 192}) {
    std::vector<float> x = awkward::gaussian(dim, random);
    x[5] = 16, x[std::size_t(dim - 9)] = -16;
    CHECK(error_of(rotated<q8<>>(dim), x) < 0.75 * error_of(q8<>(dim), x));
    CHECK(error_of(rotated<q4<>>(dim), x) < 0.75 * error_of(q4<>(dim), x));
  }
}

TEST_CASE("rotate: a rotated format is its format, and names its rotation", "[format]") {
  STATIC_REQUIRE(kv_format<rotated<q4<128>>>);
  STATIC_REQUIRE(std::is_same_v<rotation_of<rotated<q8<>>>, hadamard>);
  STATIC_REQUIRE(std::is_same_v<rotation_of<q8<>>, no_rotation>);
  CHECK(rotated<q4<>>(80).dim() == 80);
  CHECK(rotated<q4<>>(80).code_bytes() == q4<>(80).code_bytes());
  std::vector<float> x{1, 2};
  no_rotation::forward(x.data(), 2);
  no_rotation::inverse(x.data(), 2);
  CHECK(x == std::vector<float>{1, 2});
}

namespace {

/// A format without constructors, as users write them.
struct bare_format {
  static constexpr int rows = 1;
  int width = 0;
  int dim() const { return width; }
  int code_bytes() const { return fp32<>(width).code_bytes(); }
  int param_bytes() const { return 0; }
  void encode(const float* x, row_ref r) const { fp32<>(width).encode(x, r); }
  template <int N>
  void decode(row_ref r, int first, float (&out)[N]) const {
    fp32<>(width).decode(r, first, out);
  }
};

}  // namespace

TEST_CASE("rotate: a format without constructors is rotated by its value or its dim", "[format]") {
  CHECK(rotated<bare_format>(bare_format{24}).dim() == 24);
  CHECK(rotated<bare_format>(40).dim() == 40);
  CHECK(rotated<bare_format>().dim() == 0);
  CHECK(rotated<q8<64>>().dim() == 64);
}
