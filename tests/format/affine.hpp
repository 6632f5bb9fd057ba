#pragma once

#include "format/record.hpp"
#include "support/catch.hpp"

#include <cfloat>

/// What tests of integer formats with a zero share.
namespace formats {

inline constexpr double code_slack = 1e-4;  // of a code: fp32 arithmetic may tip a tie

inline std::vector<awkward::row> rows_without_nan(int dim) {
  std::vector<awkward::row> rows = awkward::finite_rows(dim);
  for (const awkward::row& row : awkward::rows_with_infinities(dim)) rows.push_back(row);
  return rows;
}

/// Code `i` of a row of `bits` bits each, by the documented layout, one bit after another.
inline int code_at(const unsigned char* row, int bits, int dim, int i) {
  const auto bit = [&](int n) { return row[n / 8] >> n % 8 & 1; };
  if (bits == 3) return bit(2 * i) | bit(2 * i + 1) << 1 | bit(2 * dim + i) << 2;
  int code = 0;
  for (int b = 0; b < bits; ++b) code |= bit(bits * i + b) << b;
  return code;
}

/// Numbers that share a scale and a zero against the formula: x as given, y as decoded, codes up to `last`.
inline void judge_affine(const std::vector<float>& x, const std::vector<float>& y, const std::vector<int>& codes,
                         int last, double scale, double zero) {
  // What zero and scale can say.
  const auto clamped = [last](double number) { return std::clamp(number, -65504.0, last * 65504.0); };
  double low = clamped(x[0]), high = low;
  for (const float number : x) {
    low = std::min(low, clamped(number));
    high = std::max(high, clamped(number));
  }
  REQUIRE(zero <= low + FLT_MIN);  // fp32 subnormals count as 0
  if (zero < 65504) REQUIRE(zero + half_step(std::max(std::fabs(zero), std::fabs(low))) > low);
  REQUIRE(is_right_scale(scale, high - zero, last));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double wanted = std::clamp((clamped(x[i]) - zero) / scale, 0.0, double(last));
    const double rounding = 0x1p-22 * (codes[i] * scale + std::fabs(zero));  // of decode's product and sum
    REQUIRE(std::fabs(codes[i] - wanted) <= 0.5 + code_slack);
    REQUIRE(std::fabs(y[i] - (codes[i] * scale + zero)) <= rounding);
    const double reachable = std::min(clamped(x[i]), zero + (last + 0.5) * largest_half);
    REQUIRE(std::fabs(reachable - double(y[i])) <= scale * (0.5 + code_slack) + rounding);
  }
}

/// Every group of a row of `bits`-bit codes.
template <int Bits, class F>
void judge_affine_row(const F& f, const std::vector<float>& x) {
  record<F> r(f, x);
  const std::vector<unsigned char> bytes = r.codes();
  const std::vector<float> y = r.template decoded<8>();
  for (int g = 0; g < f.dim() / f.group(); ++g) {
    const auto first = std::ptrdiff_t(g * f.group()), end = first + f.group();
    std::vector<int> codes;
    for (auto i = first; i < end; ++i) codes.push_back(code_at(bytes.data(), Bits, f.dim(), int(i)));
    judge_affine({x.begin() + first, x.begin() + end}, {y.begin() + first, y.begin() + end}, codes, (1 << Bits) - 1,
                 half_value(r.param(2 * g)), half_value(r.param(2 * g + 1)));
  }
}

}  // namespace formats
