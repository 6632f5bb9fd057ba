#include "support/catch.hpp"

#include <kvilt/position/rope.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace {

using namespace kvilt;

const long double pi = std::acos(-1.0L);
const idx positions[] = {0,         1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 100, 4095, 131072, 999999, 1 << 30, idx(1) << 31,
                         1000000000};

/// theta of pair `i`, radians per token.
long double theta(int i, int dims, long double base, long double factor = 1) {
  return std::pow(base, -2.0L * i / dims) / factor;
}

/// A row turned by definition, in long double, its angle reduced to one turn first. With half-split pairs number i goes
/// with i + dims / 2, otherwise 2i with 2i + 1.
std::vector<double> turned(const std::vector<float>& x, idx position, int dims, long double base, rope_pairs pairs,
                           const std::vector<float>& factors = {}) {
  std::vector<double> y(x.begin(), x.end());
  for (int i = 0; i < dims / 2; ++i) {
    const std::size_t a = std::size_t(pairs == rope_pairs::half_split ? i : 2 * i);
    const std::size_t b = std::size_t(pairs == rope_pairs::half_split ? i + dims / 2 : 2 * i + 1);
    const long double factor = factors.empty() ? 1 : factors[std::size_t(i)];
    const long double angle = std::fmod((long double)position * theta(i, dims, base, factor), 2 * pi);
    const long double cosine = std::cos(angle), sine = std::sin(angle);
    y[a] = double(x[a] * cosine - x[b] * sine);
    y[b] = double(x[b] * cosine + x[a] * sine);
  }
  return y;
}

std::vector<float> some_row(int dim) {
  std::vector<float> x(std::size_t(dim), 0.0f);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(float(3 * i + 1));
  return x;
}

double largest_difference(const std::vector<float>& is, const std::vector<double>& should_be) {
  double largest = 0;
  for (std::size_t i = 0; i < is.size(); ++i) largest = std::fmax(largest, std::fabs(is[i] - should_be[i]));
  return largest;
}

struct config {
  int dim, dims;
  double base;
  rope_pairs pairs;
};
const config configs[] = {{128, 128, 1e4, rope_pairs::half_split}, {128, 128, 5e5, rope_pairs::interleaved},
                          {64, 64, 1e5, rope_pairs::interleaved},  {80, 32, 1e4, rope_pairs::half_split},
                          {96, 48, 1e6, rope_pairs::interleaved},  {40, 2, 1e4, rope_pairs::half_split},
                          {256, 256, 1e6, rope_pairs::half_split}};

}  // namespace

TEST_CASE("rope: rows turn as in long double at every position", "[position]") {
  for (const config& c : configs) {
    const rope_table table(c.dims, c.base, c.pairs);
    for (const idx position : positions) {
      INFO("dims " << c.dims << " of " << c.dim << ", base " << c.base << ", position " << position);
      const std::vector<float> x = some_row(c.dim);
      std::vector<float> y = x;
      rope(table).apply(y.data(), position);
      CHECK(largest_difference(y, turned(x, position, c.dims, c.base, c.pairs)) < 1.5e-6);
    }
  }
}

TEST_CASE("rope: numbers beyond the turning dims keep every bit", "[position]") {
  const rope_table table(32, 1e4, rope_pairs::half_split);
  const std::vector<float> x = some_row(80);
  std::vector<float> y = x;
  rope(table).apply(y.data(), 12345);
  CHECK(std::vector<float>(y.begin() + 32, y.end()) == std::vector<float>(x.begin() + 32, x.end()));
  CHECK(y[31] != x[31]);
}

TEST_CASE("rope: any part of a row turns, and the rest keeps every bit", "[position]") {
  for (const rope_pairs pairs : {rope_pairs::half_split, rope_pairs::interleaved})
    for (const int first : {0, 1, 8, 512}) {  // 512: the last 64 of MLA's rows of 576
      const rope_table table(64, 1e4, pairs);
      rope part = table;
      part.first = first;
      const std::vector<float> x = some_row(576);
      std::vector<float> y = x;
      part.apply(y.data(), 4321);
      part.shift(y.data(), 79);
      const std::vector<float> before(x.begin() + first, x.begin() + first + 64);
      const std::vector<float> after(y.begin() + first, y.begin() + first + 64);
      CHECK(largest_difference(after, turned(before, 4400, 64, 1e4, pairs)) < 3e-6);
      std::copy(before.begin(), before.end(), y.begin() + first);
      CHECK(y == x);
    }
}

TEST_CASE("rope: position 0 and no dims change nothing", "[position]") {
  const rope_table table(64, 1e4, rope_pairs::interleaved), none(0, 1e4, rope_pairs::half_split);
  const std::vector<float> x = some_row(64);
  std::vector<float> y = x;
  rope(table).apply(y.data(), 0);
  rope(none).apply(y.data(), 77);
  rope{}.apply(y.data(), 77);
  CHECK(y == x);
}

TEST_CASE("rope: sine and cosine are right to two units of 2^-24 all around", "[position]") {
  double worst = 0;
  const auto look = [&](std::uint64_t turn) {
    std::vector<float> x = {1, 0};
    rope{&turn, 2}.apply(x.data(), 1);
    const long double angle = std::ldexp((long double)turn, -64) * 2 * pi;
    worst = std::fmax(worst, largest_difference(x, {double(std::cos(angle)), double(std::sin(angle))}));
  };
  for (std::uint64_t i = 0; i < 100'000; ++i) look(i * 0x9e3779b97f4a7c15u);
  for (std::uint64_t eighth = 0; eighth < 8; ++eighth)  // around each change of the quarter, and of the sign
    for (std::uint64_t i = 0; i < 200; ++i) look((eighth << 61) + (i - 100) * 0x40000000u);
  CHECK(worst <= std::ldexp(2.0, -24));
}

TEST_CASE("rope: frequencies of a known model", "[position]") {
  const rope_table table(128, 1e4, rope_pairs::half_split);
  const rope r = table;
  const double expected[] = {1.0,
                             0.86596432336006535,
                             0.7498942093324559,
                             0.64938163157621132,
                             0.56234132519034912,
                             0.48696752516586312,
                             0.42169650342858222,
                             0.36517412725483771};
  for (int i = 0; i < 8; ++i)
    CHECK(std::ldexp(double(r.turns[i]), -64) * 2 * double(pi) == Approx(expected[i]).epsilon(1e-14));
}

TEST_CASE("rope: a score depends on the distance alone", "[position]") {
  const rope_table table(64, 1e4, rope_pairs::half_split);
  const std::vector<float> q = some_row(64), k(q.rbegin(), q.rend());
  const auto score = [&](idx q_position, idx k_position) {
    std::vector<float> a = q, b = k;
    rope(table).apply(a.data(), q_position);
    rope(table).apply(b.data(), k_position);
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += double(a[i]) * b[i];
    return sum;
  };
  const double expected = score(7, 0);
  for (const idx position : positions) CHECK(score(position + 7, position) == Approx(expected).margin(1e-4));
}

TEST_CASE("rope: shifts add up, forth and back", "[position]") {
  for (const rope_pairs pairs : {rope_pairs::half_split, rope_pairs::interleaved}) {
    const rope_table table(96, 1e4, pairs);
    const std::vector<float> x = some_row(96);
    std::vector<float> y = x;
    rope(table).apply(y.data(), 1000);
    rope(table).shift(y.data(), 130'000);
    rope(table).shift(y.data(), -130'990);
    CHECK(largest_difference(y, turned(x, 10, 96, 1e4, pairs)) < 3e-6);
    rope(table).shift(y.data(), -10);
    CHECK(largest_difference(y, {x.begin(), x.end()}) < 3e-6);
  }
}

TEST_CASE("rope: factors divide the frequencies", "[position]") {
  std::vector<float> factors(32, 32.0f);
  for (std::size_t i = 0; i < 20; ++i) factors[i] = i < 10 ? 1.0f : 1 + float(i - 10) * 0.7f;
  const rope_table table(64, 5e5, rope_pairs::interleaved, factors);
  for (const idx position : positions) {
    const std::vector<float> x = some_row(64);
    std::vector<float> y = x;
    rope(table).apply(y.data(), position);
    CHECK(largest_difference(y, turned(x, position, 64, 5e5, rope_pairs::interleaved, factors)) < 1.5e-6);
  }
}

TEST_CASE("rope: more than one turn per token is the same as its fraction", "[position]") {
  const std::vector<float> factors{0.01f, 0.1f};
  const rope_table table(4, 1e4, rope_pairs::half_split, factors);
  const std::vector<float> x = some_row(4);
  for (const idx position : {1, 2, 3, 1000}) {
    std::vector<float> y = x;
    rope(table).apply(y.data(), position);
    CHECK(largest_difference(y, turned(x, position, 4, 1e4, rope_pairs::half_split, factors)) < 1.5e-6);
  }
}

TEST_CASE("rope: magnitude scales what turns, once", "[position]") {
  const rope_table table(32, 1e4, rope_pairs::half_split);
  rope scaled = table;
  scaled.magnitude = 1.25f;
  const std::vector<float> x = some_row(40);
  std::vector<float> y = x;
  scaled.apply(y.data(), 5);
  scaled.shift(y.data(), 6);
  std::vector<double> expected = turned(x, 11, 32, 1e4, rope_pairs::half_split);
  for (std::size_t i = 0; i < 32; ++i) expected[i] *= 1.25;
  CHECK(largest_difference(y, expected) < 1e-6);
}

TEST_CASE("rope: what makes no frequencies is refused by name", "[position]") {
  constexpr auto pairs = rope_pairs::half_split;
  const std::vector<float> three{1, 1, 1}, with_zero{1, 0}, negative{1, -2};
  const std::vector<float> with_nan{1, std::numeric_limits<float>::quiet_NaN()};
  CHECK_THROWS_AS(rope_table(7, 1e4, pairs), invalid_argument);
  CHECK_THROWS_WITH(rope_table(7, 1e4, pairs), support::containing("over 7 numbers"));
  CHECK_THROWS_WITH(rope_table(-2, 1e4, pairs), support::containing("over -2 numbers"));
  CHECK_THROWS_WITH(rope_table(8, 0, pairs), support::containing("base 0"));
  CHECK_THROWS_WITH(rope_table(8, -3, pairs), support::containing("base -3"));
  CHECK_THROWS_WITH(rope_table(8, std::nan(""), pairs), support::containing("base nan"));
  CHECK_THROWS_WITH(rope_table(4, 1e4, pairs, three), support::containing("3 factors; 2 or none"));
  CHECK_THROWS_WITH(rope_table(4, 1e4, pairs, with_zero), support::containing("factor 1 is 0"));
  CHECK_THROWS_WITH(rope_table(4, 1e4, pairs, negative), support::containing("factor 1 is -2"));
  CHECK_THROWS_WITH(rope_table(4, 1e4, pairs, with_nan), support::containing("factor 1 is nan"));
}
