#include "format/record.hpp"
#include "support/catch.hpp"

#include <kvilt/format/floating.hpp>

#include <cmath>
#include <cstring>
#include <tuple>
#include <vector>

namespace {

using namespace kvilt;
using formats::record;

/// Unit roundoff, half the smallest subnormal, and the largest number of a 16-bit format.
struct half {
  using format = fp16<>;
  static constexpr double relative = 0x1p-11, absolute = 0x1p-25, largest = 65504;
};
struct brain {
  using format = bf16<>;
  static constexpr double relative = 0x1p-8, absolute = 0x1p-134, largest = 0x1.fep127;
};
using kinds = std::tuple<half, brain>;

}  // namespace

TEST_CASE("floating: fp32 keeps every bit", "[format]") {
  for (const int dim : awkward::dims)
    for (const awkward::row& row : awkward::all_rows(dim)) {
      INFO(row.name);
      const std::vector<float> y = record<fp32<>>(fp32<>(dim), row.x).decoded<32>();
      REQUIRE(std::memcmp(row.x.data(), y.data(), row.x.size() * sizeof(float)) == 0);
    }
}

TEMPLATE_LIST_TEST_CASE("floating: 16 bits are within half a step, and saturate", "[format]", kinds) {
  for (const int dim : awkward::dims)
    for (const awkward::row& row : awkward::finite_rows(dim)) {
      INFO(row.name << ", dim " << dim);
      using format = typename TestType::format;
      const std::vector<float> y = record<format>(format(dim), row.x).template decoded<8>();
      for (std::size_t i = 0; i < y.size(); ++i) {
        const double x = std::fmax(std::fmin(row.x[i], TestType::largest), -TestType::largest);
        REQUIRE(std::fabs(x - y[i]) <= std::fmax(std::fabs(x) * TestType::relative, TestType::absolute));
        REQUIRE(std::signbit(y[i]) == std::signbit(row.x[i]));
      }
    }
}

TEMPLATE_LIST_TEST_CASE("floating: infinities and NaN stay what they are, beside other numbers", "[format]", kinds) {
  for (const int dim : awkward::dims)
    for (const auto& rows : {awkward::rows_with_infinities(dim), awkward::rows_with_nan(dim)})
      for (const awkward::row& row : rows) {
        INFO(row.name << ", dim " << dim);
        using format = typename TestType::format;
        const std::vector<float> y = record<format>(format(dim), row.x).template decoded<8>();
        for (std::size_t i = 0; i < y.size(); ++i) {
          REQUIRE(std::isnan(y[i]) == std::isnan(row.x[i]));
          if (std::isinf(row.x[i])) REQUIRE(y[i] == row.x[i]);
          REQUIRE(std::isinf(y[i]) == std::isinf(row.x[i]));
        }
      }
}
