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

#include <limits>
#include <tuple>

namespace {

using namespace kvilt;
using formats::dims_of;
using formats::record;

using plain =
    std::tuple<fp32<>, fp16<>, bf16<>, e4m3<>, e5m2<>, q8<>, q4<>, rotated<fp16<>>, rotated<e4m3<>>, rotated<q8<>>,
               rotated<q4<>>, e4m3_static<>, e5m2_static<>, rotated<e4m3_static<>>, fp16<40>, e5m2<64>, q4<72>>;

/// Bits of a floating point number by definition: a sign, then an exponent, then a mantissa.
double value_of(std::uint32_t bits, int exponent_bits, int mantissa_bits, bool infinities) {
  const int most = (1 << exponent_bits) - 1, bias = most / 2;
  const int exponent = int(bits >> mantissa_bits) & most;
  const std::uint32_t mantissa = bits & ((1u << mantissa_bits) - 1), full = (1u << mantissa_bits) - 1;
  const double sign = bits >> (exponent_bits + mantissa_bits) ? -1 : 1;
  if (infinities && exponent == most)
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (!infinities && exponent == most && mantissa == full) return std::numeric_limits<double>::quiet_NaN();
  const double fraction = double(mantissa) + (exponent ? double(full) + 1 : 0);
  return sign * std::ldexp(fraction, std::max(exponent, 1) - bias - mantissa_bits);
}

/// `Bytes` bytes, the first lowest.
template <int Bytes>
std::uint32_t bits_at(const unsigned char* from) {
  std::uint32_t bits = 0;
  for (int i = 0; i < Bytes; ++i) bits |= std::uint32_t(from[i]) << 8 * i;
  return bits;
}

double code_at(code_kind kind, const unsigned char* row, int i) {
  switch (kind) {
    case code_kind::fp32:
      return value_of(bits_at<4>(row + 4 * i), 8, 23, true);
    case code_kind::fp16:
      return value_of(bits_at<2>(row + 2 * i), 5, 10, true);
    case code_kind::bf16:
      return value_of(bits_at<2>(row + 2 * i), 8, 7, true);
    case code_kind::e4m3:
      return value_of(row[i], 4, 3, false);
    case code_kind::e5m2:
      return value_of(row[i], 5, 2, true);
    case code_kind::u8:
      return row[i];
    case code_kind::u4:
      return i % 2 ? row[i / 2] >> 4 : row[i / 2] & 15;
  }
  return 0;
}

struct affine_params {
  double scale = 1, zero = 0;
};
affine_params params_of(param_kind kind, const unsigned char* params) {
  switch (kind) {
    case param_kind::none:
      return {};
    case param_kind::scale16:
      return {value_of(bits_at<2>(params), 5, 10, true), 0};
    case param_kind::scale_zero:
      return {value_of(bits_at<2>(params), 5, 10, true), value_of(bits_at<2>(params + 2), 5, 10, true)};
    case param_kind::scale32:
      return {value_of(bits_at<4>(params), 8, 23, true), 0};
  }
  return {};
}

/// Where `decode` and what the declaration says are not the same number; -1 if nowhere.
template <class F>
int difference(record<F>& r, int dim) {
  constexpr plain_codes as = F::plain;
  const affine_params p = params_of(as.params, r.ref().params);
  const std::vector<float> decoded = r.template decoded<8>();
  for (int i = 0; i < dim; ++i) {
    const double scaled = p.scale * (code_at(as.codes, r.ref().codes, i) - as.offset), wanted = scaled + p.zero;
    const double got = double(decoded[std::size_t(i)]);
    const bool same = std::isfinite(wanted) ? std::fabs(got - wanted) <= 1e-6 * (std::fabs(scaled) + std::fabs(p.zero))
                      : std::isnan(wanted)  ? std::isnan(got)
                                            : got == wanted;
    if (!same) return i;
  }
  return -1;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("plain: decode reads a row as its declaration says", "[format]", plain) {
  static_assert(plain_format<TestType>);
  for (const int dim : dims_of<TestType>()) {
    const TestType f(dim);
    for (const awkward::row& row : awkward::all_rows(dim)) {
      INFO(row.name << ", dim " << dim);
      record<TestType> r(f, row.x);
      CHECK(difference(r, dim) == -1);
    }
  }
}

TEMPLATE_LIST_TEST_CASE("plain: every code is the number that the declaration says", "[format]", plain) {
  const TestType f(dims_of<TestType>().back());
  const int dim = f.dim();
  record<TestType> r(f, std::vector<float>(std::size_t(dim), 1.0f));
  for (int first = 0; first < 256; first += f.code_bytes()) {
    for (int i = 0; i < f.code_bytes(); ++i) r.ref().codes[i] = static_cast<unsigned char>(first + i);
    INFO("bytes from " << first << " on");
    CHECK(difference(r, dim) == -1);
  }
}

TEST_CASE("plain: what is more than numbers under one scale is not declared plain", "[format]") {
  CHECK(q8<>::plain == plain_codes{code_kind::u8, param_kind::scale16, 128});
  CHECK(q4<>::plain == plain_codes{code_kind::u4, param_kind::scale_zero, 0});
  CHECK(e4m3<>::plain == plain_codes{code_kind::e4m3, param_kind::scale16, 0});
  CHECK(e5m2<64>::plain == plain_codes{code_kind::e5m2, param_kind::scale16, 0});
  CHECK(e4m3_static<>::plain == plain_codes{code_kind::e4m3, param_kind::scale32, 0});
  CHECK(rotated<e5m2_static<>>::plain == plain_codes{code_kind::e5m2, param_kind::scale32, 0});
  // Groups have scales of their own.
  CHECK_FALSE(plain_format<q8<dynamic, 32>>);
  CHECK_FALSE(plain_format<q4<64, 32>>);
  CHECK_FALSE(plain_format<e4m3<dynamic, 128>>);
  CHECK_FALSE(plain_format<e5m2<64, 32>>);
  CHECK_FALSE(plain_format<rotated<q4<64, 32>>>);
  // A code that is NaN and no number.
  CHECK_FALSE(plain_format<q8_static<>>);
  // Codes that no kind names, tiles, rows less a mean, rows of two formats, and parts of rows under a scale.
  CHECK_FALSE(plain_format<q3<>>);
  CHECK_FALSE(plain_format<q2<>>);
  CHECK_FALSE(plain_format<q4_channel<>>);
  CHECK_FALSE(plain_format<centred<q4<>>>);
  CHECK_FALSE(plain_format<centred<rotated<q8<64>>, 2>>);
  CHECK_FALSE(plain_format<concat<q8<>, q8<>>>);
  CHECK_FALSE(plain_format<prefix<q4<64>, 32>>);
  CHECK_FALSE(plain_format<prefix<e4m3<64>, 32>>);
  CHECK_FALSE(plain_format<prefix<concat<fp16<64>, fp16<8>>, 32>>);
}

TEMPLATE_TEST_CASE("plain: the first numbers of a row without params lie as it does", "[format]", fp32<64>, fp16<64>,
                   bf16<64>) {
  using part = prefix<TestType, 40>;
  static_assert(plain_format<part>);
  CHECK(part::plain == TestType::plain);
  for (const awkward::row& row : awkward::all_rows(64)) {
    const TestType whole;
    record<TestType> r(whole, row.x);
    for (int first = 0; first < 40; first += 8) {
      float out[8];
      part(whole).template decode<8>(r.ref(), first, out);
      for (int i = 0; i < 8; ++i) {
        const double wanted = code_at(part::plain.codes, r.ref().codes, first + i), got = double(out[i]);
        INFO(row.name << ", number " << first + i);
        CHECK((got == wanted || (std::isnan(got) && std::isnan(wanted))));
      }
    }
  }
}
