#include "format/affine.hpp"

#include <kvilt/format/integer.hpp>
#include <kvilt/format/narrow.hpp>

#include <cmath>
#include <tuple>
#include <vector>

namespace {

using namespace kvilt;
using formats::dims_of;
using formats::half_value;
using formats::record;

template <int Bits, class Format>
struct kind {
  using format = Format;
  static constexpr int bits = Bits;
};
using kinds = std::tuple<kind<3, q3<>>, kind<3, q3<dynamic, 32>>, kind<3, q3<dynamic, 64>>, kind<2, q2<>>,
                         kind<2, q2<dynamic, 32>>, kind<2, q2<dynamic, 64>>>;

}  // namespace

TEMPLATE_LIST_TEST_CASE("narrow: codes are round((x - z) / s), s and z as stored, where the layout says", "[format]",
                        kinds) {
  using format = typename TestType::format;
  for (const int dim : dims_of<format>())
    for (const awkward::row& row : formats::rows_without_nan(dim)) {
      INFO(row.name << ", dim " << dim);
      formats::judge_affine_row<TestType::bits>(format(dim), row.x);
    }
}

TEST_CASE("narrow: layout of codes and params", "[format]") {
  std::vector<float> x = awkward::constant(40, 0);
  x[0] = 7, x[1] = 1, x[2] = 6, x[39] = 4;
  record<q3<>> three(q3<>(40), x);
  REQUIRE(three.codes().size() == 15);
  CHECK(three.codes()[0] == 0x27);   // low bits 3, 1, 2, 0
  CHECK(three.codes()[9] == 0x00);   // 4 has none
  CHECK(three.codes()[10] == 0x05);  // high bits of the first 8
  CHECK(three.codes()[14] == 0x80);
  CHECK(three.param(0) == 0x3c00);
  CHECK(three.param(1) == 0);

  x = awkward::constant(40, 0);
  x[0] = 3, x[1] = 1, x[2] = 2, x[39] = 2;
  record<q2<>> two(q2<>(40), x);
  REQUIRE(two.codes().size() == 10);
  CHECK(two.codes()[0] == 0x27);
  CHECK(two.codes()[9] == 0x80);
}

TEST_CASE("narrow: constants far from zero survive", "[format]") {
  for (const float x : {1.0f, -1.0f, 1000.1f, -1000.1f, 448.0f, 465.0f}) {
    for (const float y : record<q3<>>(q3<>(72), awkward::constant(72, x)).decoded<8>())
      REQUIRE(y == Approx(x).epsilon(1e-4));
    for (const float y : record<q2<>>(q2<>(72), awkward::constant(72, x)).decoded<8>())
      REQUIRE(y == Approx(x).epsilon(1e-4));
  }
}

TEST_CASE("narrow: error of Gaussian rows", "[format]") {
  CHECK(formats::relative_rmse(q3<>(64), 2000, 1) == Approx(0.19).epsilon(0.05));
  CHECK(formats::relative_rmse(q3<>(128), 2000, 2) == Approx(0.21).epsilon(0.05));
  CHECK(formats::relative_rmse(q3<>(256), 2000, 3) == Approx(0.23).epsilon(0.05));
  CHECK(formats::relative_rmse(q2<>(64), 2000, 4) == Approx(0.45).epsilon(0.05));
  CHECK(formats::relative_rmse(q2<>(128), 2000, 5) == Approx(0.50).epsilon(0.05));
  CHECK(formats::relative_rmse(q2<>(256), 2000, 6) == Approx(0.55).epsilon(0.05));
  CHECK(formats::relative_rmse(q2<dynamic, 32>(128), 2000, 7) == Approx(0.39).epsilon(0.05));
}

TEST_CASE("narrow: smaller groups lose less, and cost their params", "[format]") {
  const auto losses = [](auto whole, auto of_64, auto of_32) {
    const double a = formats::relative_rmse(whole, 500, 1), b = formats::relative_rmse(of_64, 500, 1),
                 c = formats::relative_rmse(of_32, 500, 1);
    CHECK(a > b * 1.04);
    CHECK(b > c * 1.04);
    CHECK(of_32.param_bytes() == 2 * of_64.param_bytes());
  };
  losses(q8<128>(), q8<128, 64>(), q8<128, 32>());
  losses(q4<128>(), q4<128, 64>(), q4<128, 32>());
  losses(q3<128>(), q3<128, 64>(), q3<128, 32>());
  losses(q2<128>(), q2<128, 64>(), q2<128, 32>());
}
