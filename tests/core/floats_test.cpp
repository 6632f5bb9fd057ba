#include "support/catch.hpp"

#include <kvilt/core/floats.hpp>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

namespace {

using namespace kvilt;

/// Small floats by their definition; `infinite`: the topmost exponent is kept for infinity and NaN, otherwise NaN is
/// the all-ones code alone. `saturates`: what is too large becomes the largest finite number.
struct binary16 {
  static constexpr int exponent_bits = 5, mantissa_bits = 10;
  static constexpr bool infinite = true, saturates = false;
  static unsigned encode(float x) { return to_fp16(x); }
  static float decode(unsigned code) { return from_fp16(std::uint16_t(code)); }
};
struct brain16 {
  static constexpr int exponent_bits = 8, mantissa_bits = 7;
  static constexpr bool infinite = true, saturates = false;
  static unsigned encode(float x) { return to_bf16(x); }
  static float decode(unsigned code) { return from_bf16(std::uint16_t(code)); }
};
struct fp8_e4m3 {
  static constexpr int exponent_bits = 4, mantissa_bits = 3;
  static constexpr bool infinite = false, saturates = true;
  static unsigned encode(float x) { return to_e4m3(x); }
  static float decode(unsigned code) { return from_e4m3(std::uint8_t(code)); }
};
struct fp8_e5m2 {
  static constexpr int exponent_bits = 5, mantissa_bits = 2;
  static constexpr bool infinite = true, saturates = true;
  static unsigned encode(float x) { return to_e5m2(x); }
  static float decode(unsigned code) { return from_e5m2(std::uint8_t(code)); }
};
using kinds = std::tuple<binary16, brain16, fp8_e4m3, fp8_e5m2>;

template <class F>
constexpr unsigned sign_bit = 1u << (F::exponent_bits + F::mantissa_bits);

template <class F>
constexpr unsigned largest_code = F::infinite ? sign_bit<F> - (1u << F::mantissa_bits) - 1 : sign_bit<F> - 2;

/// What a magnitude code means when the topmost exponent is like any other.
template <class F>
double ordinary_value(unsigned magnitude) {
  const int bias = (1 << (F::exponent_bits - 1)) - 1;
  const int exponent = int(magnitude >> F::mantissa_bits);
  const int mantissa = int(magnitude & ((1u << F::mantissa_bits) - 1));
  const int significand = exponent ? mantissa + (1 << F::mantissa_bits) : mantissa;
  return std::ldexp(significand, std::max(exponent, 1) - bias - F::mantissa_bits);
}

template <class F>
double value_of(unsigned code) {
  const unsigned magnitude = code & (sign_bit<F> - 1);
  double value = ordinary_value<F>(magnitude);
  if (magnitude > largest_code<F>) value = std::numeric_limits<double>::quiet_NaN();
  if (F::infinite && magnitude == largest_code<F> + 1) value = std::numeric_limits<double>::infinity();
  return code & sign_bit<F> ? -value : value;
}

/// The nearest code by search among all values, ties to the even one.
template <class F>
class nearest_code {
 public:
  nearest_code() {
    for (unsigned code = 0; code <= largest_code<F>; ++code) values_.push_back(ordinary_value<F>(code));
    if (!F::saturates) values_.push_back(ordinary_value<F>(largest_code<F> + 1));  // rounding there overflows
  }
  unsigned operator()(float x) const {
    if (std::isnan(x)) return sign_bit<F> - 1;
    const unsigned sign = std::signbit(x) ? sign_bit<F> : 0;
    const double magnitude = std::fabs(double(x));
    const auto above = std::upper_bound(values_.begin(), values_.end(), magnitude);
    const unsigned high = unsigned(above - values_.begin());
    if (high == values_.size()) return sign | (high - 1);
    const double middle = (values_[high - 1] + values_[high]) / 2;
    const bool up = magnitude > middle || (magnitude == middle && high % 2 == 0);
    return sign | (up ? high : high - 1);
  }

 private:
  std::vector<double> values_;
};

/// Counts what a loop of millions finds wrong, and remembers the first.
struct mismatches {
  long count = 0;
  std::uint32_t bits = 0;
  unsigned got = 0, expected = 0;

  void compare(float x, unsigned is, unsigned should_be) {
    if (is == should_be) return;
    if (count++ == 0) bits = bits_of(x), got = is, expected = should_be;
  }
  void judge() const {
    INFO("first: fp32 bits " << bits << " give code " << got << " instead of " << expected);
    CHECK(count == 0);
  }
};

const float infinity = std::numeric_limits<float>::infinity();
const float nans[] = {float_of(0x7fc00000u), float_of(0xffc00000u), float_of(0x7f800001u), float_of(0xff800001u),
                      float_of(0x7fffffffu), float_of(0xffffffffu), float_of(0x7fbfffffu), float_of(0x7f802000u)};

/// As CUDA's __half is to a compiler: a struct of its own.
struct foreign_half {
  unsigned short x;
};

/// Writes through the one type and reads through the other, as one function that an optimiser sees as a whole.
template <class Ours>
[[gnu::noinline]] unsigned write_and_read(foreign_half* theirs, Ours* ours) {
  theirs->x = 1;
  ours->bits = 2;
  const unsigned read = theirs->x;
  theirs->x = 3;
  return 10 * read + ours->bits;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("floats: every code decodes to its value", "[core]", kinds) {
  long wrong = 0;
  unsigned first = 0;
  for (unsigned code = 0; code < 2 * sign_bit<TestType>; ++code) {
    const float is = TestType::decode(code);
    const double should_be = value_of<TestType>(code);
    const bool same =
        std::isnan(should_be) ? std::isnan(is) : double(is) == should_be && std::signbit(is) == std::signbit(should_be);
    if (!same && wrong++ == 0) first = code;
  }
  INFO("first: code " << first << " gives " << TestType::decode(first));
  CHECK(wrong == 0);
}

TEMPLATE_LIST_TEST_CASE("floats: every finite code encodes to itself", "[core]", kinds) {
  mismatches found;
  for (unsigned code = 0; code < 2 * sign_bit<TestType>; ++code) {
    const float x = TestType::decode(code);
    if (std::isfinite(x)) found.compare(x, TestType::encode(x), code);
  }
  found.judge();
}

TEMPLATE_LIST_TEST_CASE("floats: midpoints of adjacent codes round to the even one", "[core]", kinds) {
  mismatches found;
  const unsigned last = largest_code<TestType>;
  for (unsigned low = 0; low <= last; ++low) {
    const unsigned high = low == last && TestType::saturates ? low : low + 1;
    const double middle = (ordinary_value<TestType>(low) + ordinary_value<TestType>(low + 1)) / 2;
    const float x = float(middle);
    REQUIRE(double(x) == middle);
    const float below = std::nextafter(x, 0.0f), above = std::nextafter(x, infinity);
    const unsigned even = low % 2 == 0 ? low : high;
    found.compare(x, TestType::encode(x), even);
    found.compare(below, TestType::encode(below), low);
    found.compare(above, TestType::encode(above), high);
    found.compare(-x, TestType::encode(-x), sign_bit<TestType> | even);
    found.compare(-below, TestType::encode(-below), sign_bit<TestType> | low);
    found.compare(-above, TestType::encode(-above), sign_bit<TestType> | high);
  }
  found.judge();
}

TEMPLATE_LIST_TEST_CASE("floats: random bit patterns encode to the nearest code", "[core]", kinds) {
  const nearest_code<TestType> search;
  std::mt19937 bits(1);
  mismatches found;
  for (int i = 0; i < 10'000'000; ++i) {
    const float x = float_of(std::uint32_t(bits()));
    found.compare(x, TestType::encode(x), search(x));
  }
  // Most patterns are too large or too small for a narrow exponent: a million more where its codes lie.
  for (int i = 0; i < 1'000'000; ++i) {
    const float x = float_of((std::uint32_t(bits()) & 0x87ffffffu) + (119u << 23));
    found.compare(x, TestType::encode(x), search(x));
  }
  found.judge();
}

TEMPLATE_LIST_TEST_CASE("floats: every NaN becomes the one NaN without a sign", "[core]", kinds) {
  for (const float x : nans) CHECK(TestType::encode(x) == sign_bit<TestType> - 1);
}

TEMPLATE_LIST_TEST_CASE("floats: zeros keep their sign, fp32 subnormals round", "[core]", kinds) {
  const unsigned minus = sign_bit<TestType>;
  CHECK(TestType::encode(0.0f) == 0);
  CHECK(TestType::encode(-0.0f) == minus);
  const nearest_code<TestType> search;
  for (const std::uint32_t bits : {1u, 0x7fffu, 0x8000u, 0x8001u, 0x18000u, 0x400000u, 0x7fffffu}) {
    CHECK(TestType::encode(float_of(bits)) == search(float_of(bits)));
    CHECK(TestType::encode(-float_of(bits)) == (minus | search(float_of(bits))));
  }
}

TEST_CASE("floats: fp16 overflows to infinity at 65520", "[core]") {
  CHECK(to_fp16(65504.0f) == 0x7bff);
  CHECK(to_fp16(std::nextafter(65520.0f, 0.0f)) == 0x7bff);
  CHECK(to_fp16(65520.0f) == 0x7c00);
  CHECK(to_fp16(-65520.0f) == 0xfc00);
  CHECK(to_fp16(FLT_MAX) == 0x7c00);
  CHECK(to_fp16(infinity) == 0x7c00);
  CHECK(to_fp16(-infinity) == 0xfc00);
}

TEST_CASE("floats: bf16 overflows to infinity above its largest number", "[core]") {
  CHECK(to_bf16(float_of(0x7f7f7fffu)) == 0x7f7f);
  CHECK(to_bf16(float_of(0x7f7f8000u)) == 0x7f80);
  CHECK(to_bf16(FLT_MAX) == 0x7f80);
  CHECK(to_bf16(-FLT_MAX) == 0xff80);
  CHECK(to_bf16(infinity) == 0x7f80);
  CHECK(to_bf16(-infinity) == 0xff80);
}

TEST_CASE("floats: fp8 saturates, infinity too", "[core]") {
  for (const float x : {448.0f, std::nextafter(448.0f, infinity), 464.0f, 465.0f, 480.0f, 1e30f, FLT_MAX, infinity}) {
    CHECK(to_e4m3(x) == 0x7e);
    CHECK(to_e4m3(-x) == 0xfe);
  }
  for (const float x : {57344.0f, std::nextafter(57344.0f, infinity), 61440.0f, 65536.0f, 1e30f, FLT_MAX, infinity}) {
    CHECK(to_e5m2(x) == 0x7b);
    CHECK(to_e5m2(-x) == 0xfb);
  }
}

TEST_CASE("floats: saturating 16-bit conversions stop finite numbers alone", "[core]") {
  for (const float x : {65520.0f, 1e30f, FLT_MAX}) {
    CHECK(to_fp16_saturating(x) == 0x7bff);
    CHECK(to_fp16_saturating(-x) == 0xfbff);
  }
  CHECK(to_bf16_saturating(FLT_MAX) == 0x7f7f);
  CHECK(to_bf16_saturating(-FLT_MAX) == 0xff7f);
  CHECK(to_fp16_saturating(infinity) == 0x7c00);
  CHECK(to_fp16_saturating(-infinity) == 0xfc00);
  CHECK(to_bf16_saturating(infinity) == 0x7f80);
  CHECK(to_bf16_saturating(-infinity) == 0xff80);
  for (const float x : nans) {
    CHECK(to_fp16_saturating(x) == 0x7fff);
    CHECK(to_bf16_saturating(x) == 0x7fff);
  }
  std::mt19937 bits(2);
  for (int i = 0; i < 100'000; ++i) {
    const float x = float_of(std::uint32_t(bits()));
    if (std::isfinite(x) && std::isfinite(from_fp16(to_fp16(x)))) REQUIRE(to_fp16_saturating(x) == to_fp16(x));
    if (std::isfinite(x) && std::isfinite(from_bf16(to_bf16(x)))) REQUIRE(to_bf16_saturating(x) == to_bf16(x));
  }
}

TEST_CASE("floats: load and store convert elements of a caller's tensor", "[core]") {
  float whole = 0;
  float16 half{};
  bfloat16 brain{};
  store(whole, 1.0f / 3);
  store(half, 1.0f / 3);
  store(brain, 1.0f / 3);
  CHECK(load(whole) == 1.0f / 3);
  CHECK(half.bits == 0x3555);
  CHECK(load(half) == 0x1.554p-2f);
  CHECK(brain.bits == 0x3eab);
  CHECK(load(brain) == 0x1.56p-2f);
}

TEST_CASE("floats: halves of another library are read and written in place", "[core]") {
  foreign_half one{0};
  CHECK(write_and_read(&one, reinterpret_cast<float16*>(&one)) == 23);
  CHECK(write_and_read(&one, reinterpret_cast<bfloat16*>(&one)) == 23);
  foreign_half many[64];
  for (int i = 0; i < 64; ++i) many[i].x = to_fp16(float(i));
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += load(reinterpret_cast<const float16*>(many)[i]);
  CHECK(sum == 63.0f * 32);
  for (int i = 0; i < 64; ++i) store(reinterpret_cast<float16*>(many)[i], 1.0f);
  for (int i = 0; i < 64; ++i) sum += from_fp16(many[i].x);
  CHECK(sum == 63.0f * 32 + 64);
}

TEST_CASE("floats: conversions are constant expressions", "[core]") {
  STATIC_REQUIRE(to_fp16(1.0f) == 0x3c00);
  STATIC_REQUIRE(to_fp16(-2.0f) == 0xc000);
  STATIC_REQUIRE(from_fp16(0x7bff) == 65504.0f);
  STATIC_REQUIRE(from_fp16(1) == 0x1p-24f);
  STATIC_REQUIRE(to_bf16(1.0f) == 0x3f80);
  STATIC_REQUIRE(from_bf16(0xc000) == -2.0f);
  STATIC_REQUIRE(to_e4m3(448.0f) == 0x7e);
  STATIC_REQUIRE(from_e4m3(0x7e) == 448.0f);
  STATIC_REQUIRE(from_e4m3(1) == 0x1p-9f);
  STATIC_REQUIRE(to_e5m2(57344.0f) == 0x7b);
  STATIC_REQUIRE(from_e5m2(0x7b) == 57344.0f);
  STATIC_REQUIRE(to_fp16_saturating(2.0f) == 0x4000);
  STATIC_REQUIRE(to_bf16_saturating(2.0f) == 0x4000);
  STATIC_REQUIRE(is_nan(from_e4m3(0x7f)));
}
