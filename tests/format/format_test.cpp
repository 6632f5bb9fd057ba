#include "format/record.hpp"
#include "support/catch.hpp"

#include <kvilt/format/centred.hpp>
#include <kvilt/format/channel.hpp>
#include <kvilt/format/concat.hpp>
#include <kvilt/format/floating.hpp>
#include <kvilt/format/fp8.hpp>
#include <kvilt/format/integer.hpp>
#include <kvilt/format/narrow.hpp>
#include <kvilt/format/rotate.hpp>
#include <kvilt/format/static_scale.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

namespace {

using namespace kvilt;
using formats::dims_of;
using formats::record;

using scaled = std::tuple<e4m3<>, e4m3<dynamic, 32>, e5m2<>, e5m2<dynamic, 64>, q8<>, q8<dynamic, 32>, q4<>,
                          q4<dynamic, 32>, q3<>, q3<dynamic, 32>, q2<>, q2<dynamic, 64>>;
using all = std::tuple<fp32<>, fp16<>, bf16<>, e4m3<>, q8<>, q8<dynamic, 32>, q4<>, q4<dynamic, 32>, rotated<q8<>>,
                       rotated<q4<>>, q8<128>, q8<256, 64>, q4<40>, q4<192, 64>, e4m3<dynamic, 32>, e4m3<256, 128>,
                       e5m2<>, e5m2<dynamic, 64>, e4m3_static<>, e5m2_static<>, q8_static<>, rotated<q8_static<72>>,
                       q3<>, q3<dynamic, 32>, q3<72>, q2<>, q2<dynamic, 32>, q2<192, 64>>;

/// A format with its dim in the type, and the same one with it at run time.
template <class Fixed, class AtRunTime>
struct twins {
  using fixed = Fixed;
  using at_run_time = AtRunTime;
};
using pairs =
    std::tuple<twins<fp32<64>, fp32<>>, twins<fp16<72>, fp16<>>, twins<bf16<96>, bf16<>>, twins<e4m3<112>, e4m3<>>,
               twins<q8<80>, q8<>>, twins<q4<256>, q4<>>, twins<q8<64, 32>, q8<dynamic, 32>>,
               twins<q4<128, 32>, q4<dynamic, 32>>, twins<e4m3<256, 128>, e4m3<dynamic, 128>>, twins<e5m2<96>, e5m2<>>,
               twins<e4m3_static<80>, e4m3_static<>>, twins<e5m2_static<64>, e5m2_static<>>,
               twins<q8_static<72>, q8_static<>>, twins<q3<40>, q3<>>, twins<q2<72>, q2<>>,
               twins<q3<192, 64>, q3<dynamic, 64>>, twins<q2<64, 32>, q2<dynamic, 32>>>;

// Bit for bit, but that one NaN is as good as another: which of two a product hands on is the compiler's choice.
bool same_numbers(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return bits_of(x) == bits_of(y) || (std::isnan(x) && std::isnan(y));
  });
}

bool all_finite(const std::vector<float>& x) {
  for (const float number : x)
    if (!std::isfinite(number)) return false;
  return true;
}

bool all_zero(const std::vector<float>& x) {
  for (const float number : x)
    if (number != 0) return false;
  return true;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("format: encode writes its codes and params and nothing else", "[format]", all) {
  for (const int dim : dims_of<TestType>())
    for (const awkward::row& row : awkward::all_rows(dim)) {
      INFO(row.name << ", dim " << dim);
      record<TestType> written(TestType(dim), row.x);
      REQUIRE(written.guards_hold());
      // Every byte is written: what lay there before makes no difference.
      record<TestType> again{TestType(dim)};
      std::memset(again.ref().codes, 0, again.codes().size());
      std::memset(again.ref().params, 0, again.params().size());
      TestType(dim).encode(row.x.data(), again.ref());
      REQUIRE(again.codes() == written.codes());
      REQUIRE(again.params() == written.params());
    }
}

TEMPLATE_LIST_TEST_CASE("format: 8, 16, 32 numbers at a time and whole rows decode alike", "[format]", all) {
  for (const int dim : dims_of<TestType>())
    for (const awkward::row& row : awkward::all_rows(dim)) {
      INFO(row.name << ", dim " << dim);
      record<TestType> r(TestType(dim), row.x);
      const std::vector<float> eights = r.template decoded<8>();
      REQUIRE(same_numbers(eights, r.template decoded<16>()));
      REQUIRE(same_numbers(eights, r.template decoded<32>()));
      std::vector<float> whole(eights.size());
      decode_row(TestType(dim), r.ref(), whole.data());
      REQUIRE(same_numbers(eights, whole));
    }
}

TEMPLATE_LIST_TEST_CASE("format: finite rows stay finite, however large", "[format]", all) {
  for (const int dim : dims_of<TestType>())
    for (const awkward::row& row : awkward::finite_rows(dim)) {
      INFO(row.name << ", dim " << dim);
      REQUIRE(all_finite(record<TestType>(TestType(dim), row.x).template decoded<8>()));
    }
}

TEMPLATE_LIST_TEST_CASE("format: zeros of either sign stay zeros", "[format]", all) {
  for (const int dim : dims_of<TestType>())
    for (const float zero : {0.0f, -0.0f})
      CHECK(all_zero(record<TestType>(TestType(dim), awkward::constant(dim, zero)).template decoded<8>()));
}

TEMPLATE_LIST_TEST_CASE("format: a NaN turns every number that shares its scale into NaN", "[format]", scaled) {
  for (const int dim : dims_of<TestType>())
    for (const awkward::row& row : awkward::rows_with_nan(dim)) {
      INFO(row.name << ", dim " << dim);
      const TestType format(dim);
      std::size_t group = std::size_t(dim);
      if constexpr (requires { format.group(); }) group = std::size_t(format.group());
      const std::vector<float> x = record<TestType>(format, row.x).template decoded<8>();
      for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(std::isnan(x[i]) == (i / group == awkward::nan_at / group));
    }
}

TEMPLATE_LIST_TEST_CASE("format: infinities saturate where numbers share a scale", "[format]", scaled) {
  for (const int dim : dims_of<TestType>())
    for (const awkward::row& row : awkward::rows_with_infinities(dim)) {
      INFO(row.name << ", dim " << dim);
      const std::vector<float> x = record<TestType>(TestType(dim), row.x).template decoded<8>();
      REQUIRE(all_finite(x));
      for (std::size_t i = 0; i < x.size(); ++i)
        if (std::isinf(row.x[i])) REQUIRE(std::signbit(x[i]) == std::signbit(row.x[i]));
    }
}

TEMPLATE_LIST_TEST_CASE("format: a dim in the type and one at run time give the same bytes", "[format]", pairs) {
  using fixed = typename TestType::fixed;
  using at_run_time = typename TestType::at_run_time;
  const int dim = fixed().dim();
  STATIC_REQUIRE(std::is_empty_v<fixed>);
  CHECK(at_run_time(dim).code_bytes() == fixed().code_bytes());
  CHECK(at_run_time(dim).param_bytes() == fixed().param_bytes());
  for (const awkward::row& row : awkward::all_rows(dim)) {
    INFO(row.name);
    record<fixed> a(fixed(), row.x);
    record<at_run_time> b(at_run_time(dim), row.x);
    REQUIRE(a.codes() == b.codes());
    REQUIRE(a.params() == b.params());
    REQUIRE(same_numbers(a.template decoded<16>(), b.template decoded<16>()));
  }
}

TEST_CASE("format: bytes of a row", "[format]") {
  CHECK(fp32<>(128).code_bytes() == 512);
  CHECK(fp16<>(128).code_bytes() == 256);
  CHECK(bf16<>(72).code_bytes() == 144);
  CHECK(e4m3<>(72).code_bytes() == 72);
  CHECK(e4m3<>(72).param_bytes() == 2);
  CHECK(e4m3<512, 128>().param_bytes() == 8);
  CHECK(e5m2<>(72).code_bytes() == 72);
  CHECK(e5m2<>(72).param_bytes() == 2);
  CHECK(q8<>(72).code_bytes() == 72);
  CHECK(q8<>(72).param_bytes() == 2);
  CHECK(q8<dynamic, 32>(96).param_bytes() == 6);
  CHECK(q4<>(72).code_bytes() == 36);
  CHECK(q4<>(72).param_bytes() == 4);
  CHECK(q4<dynamic, 64>(192).param_bytes() == 12);
  CHECK(q3<>(72).code_bytes() == 27);
  CHECK(q3<>(72).param_bytes() == 4);
  CHECK(q2<dynamic, 32>(128).code_bytes() == 32);
  CHECK(q2<dynamic, 32>(128).param_bytes() == 16);
}

TEST_CASE("format: names", "[format]") {
  struct nameless {};
  CHECK(std::string(name_of(fp32<>())) == "fp32");
  CHECK(std::string(name_of(fp16<>())) == "fp16");
  CHECK(std::string(name_of(bf16<>())) == "bf16");
  CHECK(std::string(name_of(e4m3<>())) == "e4m3");
  CHECK(std::string(name_of(e4m3<256, 128>())) == "e4m3g128");
  CHECK(std::string(name_of(e5m2<>())) == "e5m2");
  CHECK(std::string(name_of(e5m2<dynamic, 32>())) == "e5m2g32");
  CHECK(std::string(name_of(e4m3_static<>())) == "e4m3_static");
  CHECK(std::string(name_of(e5m2_static<>())) == "e5m2_static");
  CHECK(std::string(name_of(q8_static<>())) == "q8_static");
  CHECK(std::string(name_of(q8<>())) == "q8");
  CHECK(std::string(name_of(q4<>())) == "q4");
  CHECK(std::string(name_of(q8<128, 32>())) == "q8g32");
  CHECK(std::string(name_of(q4<dynamic, 128>())) == "q4g128");
  CHECK(std::string(name_of(rotated<q4<64, 32>>())) == "q4g32rot");
  CHECK(std::string(name_of(q3<>())) == "q3");
  CHECK(std::string(name_of(q3<dynamic, 64>())) == "q3g64");
  CHECK(std::string(name_of(q2<dynamic, 32>())) == "q2g32");
  CHECK(std::string(name_of(q4_channel<>())) == "q4_channel");
  CHECK(std::string(name_of(q2_channel<64, 16>())) == "q2_channel16");
  CHECK(std::string(name_of(centred<q4<>>())) == "q4ctr");
  CHECK(std::string(name_of(centred<rotated<q8<64, 32>>, 16>())) == "q8g32rotctr16");
  CHECK(std::string(name_of(concat<e4m3<512, 128>, bf16<64>>())) == "e4m3g128_bf16");
  CHECK(std::string(name_of(prefix<bf16<576>, 512>())) == "prefix512");
  CHECK(std::string(name_of(nameless())) == "user");
}
