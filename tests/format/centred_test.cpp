#include "format/affine.hpp"
#include "format/tile_record.hpp"

#include <kvilt/format/centred.hpp>
#include <kvilt/format/floating.hpp>
#include <kvilt/format/fp8.hpp>
#include <kvilt/format/integer.hpp>
#include <kvilt/format/narrow.hpp>
#include <kvilt/format/rotate.hpp>

#include <tuple>

namespace {

using namespace kvilt;
using formats::half_value;
using formats::record;
using formats::tile;

template <class Row, class Format>
struct kind {
  using row = Row;
  using format = Format;
};
using kinds = std::tuple<kind<q4<>, centred<q4<>>>, kind<q4<dynamic, 32>, centred<q4<dynamic, 32>, 16>>,
                         kind<q8<>, centred<q8<>, 5>>, kind<q3<72>, centred<q3<72>>>, kind<e4m3<>, centred<e4m3<>>>,
                         kind<fp32<>, centred<fp32<>, 3>>>;

/// The mean of a channel over the tile, numbers beyond fp16 counted as fp16's last.
double mean_of(const std::vector<float>& x, int channel, int rows, int dim) {
  double sum = 0;
  for (int t = 0; t < rows; ++t) {
    const double number = x[std::size_t(t * dim + channel)];
    sum += std::isnan(number) ? 0 : std::clamp(number, -65504.0, 65504.0);
  }
  return sum / rows;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("centred: params are the mean and the rows', codes those of each row less the mean", "[format]",
                        kinds) {
  using format = typename TestType::format;
  using row_format = typename TestType::row;
  constexpr int rows = format::rows;
  for (const int dim : formats::dims_of<format>()) {
    if (dim > 128) continue;
    const format f(dim);
    const row_format row(dim);
    const int pitch = f.code_bytes() / rows;
    REQUIRE(pitch % 16 == 0);
    REQUIRE(f.param_bytes() == 2 * dim + rows * row.param_bytes());
    for (const awkward::row& x : formats::tiles_of(awkward::all_rows(dim), rows, dim)) {
      INFO(x.name << ", dim " << dim);
      tile<format> t(f, x.x);
      REQUIRE(t.bytes().guards_hold());
      std::vector<float> mean;
      for (int d = 0; d < dim; ++d) {
        const double wanted = mean_of(x.x, d, rows, dim), got = half_value(t.bytes().param(d));
        REQUIRE(std::fabs(got - wanted) <= formats::half_step(wanted) * 0.5 * (1 + 1e-3) + 65504 * 1e-6 * rows);
        mean.push_back(float(got));
      }
      const std::vector<float> y = t.decoded();
      const std::vector<unsigned char> codes = t.bytes().codes(), params = t.bytes().params();
      for (int token = 0; token < rows; ++token) {
        std::vector<float> less;
        for (int d = 0; d < dim; ++d) less.push_back(x.x[std::size_t(token * dim + d)] - mean[std::size_t(d)]);
        record<row_format> wanted(row, less);
        const auto at = codes.begin() + token * pitch;
        REQUIRE(std::vector<unsigned char>(at, at + row.code_bytes()) == wanted.codes());
        const auto params_at = params.begin() + 2 * dim + token * row.param_bytes();
        REQUIRE(std::vector<unsigned char>(params_at, params_at + row.param_bytes()) == wanted.params());
        const std::vector<float> back = wanted.template decoded<8>();
        for (int d = 0; d < dim; ++d) {
          const float sum = back[std::size_t(d)] + mean[std::size_t(d)], got = y[std::size_t(token * dim + d)];
          REQUIRE((got == sum || (std::isnan(got) && std::isnan(sum))));
        }
      }
    }
  }
}

TEST_CASE("centred: a NaN or an infinity spoils its own row alone", "[format]") {
  const centred<q4<>> f(72);
  for (const awkward::row& x : formats::tiles_of(awkward::rows_with_nan(72), 64, 72)) {
    if (x.name.ends_with("every token")) continue;
    const std::vector<float> y = tile<centred<q4<>>>(f, x.x).decoded();
    for (std::size_t t = 0; t < 64; ++t) {
      bool nan = false;
      for (std::size_t d = 0; d < 72; ++d) nan |= std::isnan(x.x[t * 72 + d]);
      for (std::size_t d = 0; d < 72; ++d) REQUIRE(std::isnan(y[t * 72 + d]) == nan);
    }
  }
  for (const awkward::row& x : formats::tiles_of(formats::rows_without_nan(72), 64, 72)) {
    INFO(x.name);
    for (const float number : tile<centred<q4<>>>(f, x.x).decoded()) REQUIRE(std::isfinite(number));
  }
}

TEST_CASE("centred: 8, 16 and 32 numbers decode alike", "[format]") {
  for (const int dim : awkward::dims) {
    tile<centred<q4<>>> t(centred<q4<>>(dim), formats::keys_with_offsets(64, dim, 5, 3));
    CHECK(t.decoded<16>() == t.decoded());
    CHECK(t.decoded<32>() == t.decoded());
  }
}

TEST_CASE("centred: offsets of channels cost nothing but the mean's bytes", "[format]") {
  for (const int dim : {64, 128}) {
    const std::vector<float> calm = formats::keys_with_offsets(64, dim, 0, 2);
    const std::vector<float> x = formats::keys_with_offsets(64, dim, 16, 2);
    const double plain = formats::rms_error_by_token(q4<>(dim), calm);
    CHECK(formats::rms_error(x, tile<centred<q4<>>>(centred<q4<>>(dim), x).decoded()) == Approx(plain).epsilon(0.05));
    CHECK(formats::rms_error_by_token(q4<>(dim), x) > 4 * plain);
  }
  CHECK(centred<q4<128>>().code_bytes() == 64 * 64);
  CHECK(centred<q4<128>>().param_bytes() == 64 * 4 + 2 * 128);
}

TEST_CASE("centred: keeps its rows' rotation, and can be rotated", "[format]") {
  STATIC_REQUIRE(std::is_same_v<rotation_of<centred<rotated<q4<>>>>, hadamard>);
  STATIC_REQUIRE(std::is_same_v<rotation_of<rotated<centred<q4<64>>>>, hadamard>);
  STATIC_REQUIRE(std::is_same_v<rotation_of<centred<q4<>>>, no_rotation>);
  CHECK(rotated<centred<q4<>>>(80).dim() == 80);
  CHECK(rotated<centred<q4<96, 32>>>().group() == 32);
}
