#include "format/affine.hpp"
#include "format/tile_record.hpp"

#include <kvilt/format/channel.hpp>
#include <kvilt/format/integer.hpp>
#include <kvilt/format/narrow.hpp>

#include <tuple>

namespace {

using namespace kvilt;
using formats::half_value;
using formats::tile;

template <int Bits, class Format>
struct kind {
  using format = Format;
  static constexpr int bits = Bits;
};
using kinds = std::tuple<kind<4, q4_channel<>>, kind<2, q2_channel<>>, kind<4, q4_channel<dynamic, 5>>,
                         kind<2, q2_channel<72, 64>>>;

/// Every `stride`th number from `first` on.
template <class T>
std::vector<T> column(const std::vector<T>& x, int first, int stride) {
  std::vector<T> y;
  for (std::size_t i = std::size_t(first); i < x.size(); i += std::size_t(stride)) y.push_back(x[i]);
  return y;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("channel: codes are round((x - z) / s), s and z of the channel over the tile", "[format]",
                        kinds) {
  using format = typename TestType::format;
  for (const int dim : formats::dims_of<format>()) {
    if (dim > 128) continue;
    const format f(dim);
    const int row_bytes = f.code_bytes() / format::rows;
    for (const awkward::row& x : formats::tiles_of(formats::rows_without_nan(dim), format::rows, dim)) {
      INFO(x.name << ", dim " << dim);
      tile<format> t(f, x.x);
      REQUIRE(t.bytes().guards_hold());
      const std::vector<unsigned char> bytes = t.bytes().codes();
      const std::vector<float> y = t.decoded();
      for (int c = 0; c < dim; ++c) {
        std::vector<int> codes;
        for (int row = 0; row < format::rows; ++row)
          codes.push_back(formats::code_at(bytes.data() + row * row_bytes, TestType::bits, dim, c));
        formats::judge_affine(column(x.x, c, dim), column(y, c, dim), codes, (1 << TestType::bits) - 1,
                              half_value(t.bytes().param(c)), half_value(t.bytes().param(dim + c)));
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("channel: 8, 16 and 32 numbers decode alike, and a NaN stays in its channel", "[format]",
                        kinds) {
  using format = typename TestType::format;
  for (const int dim : formats::dims_of<format>())
    for (const awkward::row& x : formats::tiles_of(awkward::rows_with_nan(dim), format::rows, dim)) {
      INFO(x.name << ", dim " << dim);
      tile<format> t(format(dim), x.x);
      const std::vector<float> y = t.decoded();
      REQUIRE(std::memcmp(y.data(), t.template decoded<16>().data(), y.size() * 4) == 0);
      REQUIRE(std::memcmp(y.data(), t.template decoded<32>().data(), y.size() * 4) == 0);
      for (std::size_t i = 0; i < y.size(); ++i) REQUIRE(std::isnan(y[i]) == (i % std::size_t(dim) == awkward::nan_at));
    }
}

TEST_CASE("channel: bytes of a tile", "[format]") {
  CHECK(q4_channel<128>().code_bytes() == 32 * 64);
  CHECK(q4_channel<128>().param_bytes() == 4 * 128);
  CHECK(q2_channel<>(40).code_bytes() == 32 * 10);
  CHECK(q2_channel<64, 64>().code_bytes() == 64 * 16);
  CHECK(std::string(name_of(q4_channel<>())) == "q4_channel");
  CHECK(std::string(name_of(q2_channel<>())) == "q2_channel");
}

TEST_CASE("channel: error of Gaussian tiles is that of groups of as many numbers", "[format]") {
  const std::vector<float> x = formats::keys_with_offsets(32, 128, 0, 1);
  CHECK(formats::rms_error(x, tile<q4_channel<>>(q4_channel<>(128), x).decoded()) == Approx(0.078).epsilon(0.05));
  CHECK(formats::rms_error(x, tile<q2_channel<>>(q2_channel<>(128), x).decoded()) == Approx(0.39).epsilon(0.05));
}

TEST_CASE("channel: channels that are large in every token cost nothing", "[format]") {
  const std::vector<float> x = formats::keys_with_offsets(32, 128, 16, 2);
  const double four = formats::rms_error(x, tile<q4_channel<>>(q4_channel<>(128), x).decoded());
  const double two = formats::rms_error(x, tile<q2_channel<>>(q2_channel<>(128), x).decoded());
  CHECK(four == Approx(0.078).epsilon(0.06));
  CHECK(two == Approx(0.39).epsilon(0.06));
  CHECK(formats::rms_error_by_token(q4<>(128), x) > 6 * four);
  CHECK(formats::rms_error_by_token(q2<>(128), x) > 2 * two);
}
