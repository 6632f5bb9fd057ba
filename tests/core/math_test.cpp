#include "support/catch.hpp"

#include <kvilt/core/math.hpp>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace kvilt;

const idx largest_dividend = std::numeric_limits<std::uint32_t>::max();

/// Dividends at which a magic number that is off by one goes wrong first: around multiples of the divisor.
std::vector<idx> edge_dividends(idx divisor) {
  std::vector<idx> edges{0, 1, 2, (idx(1) << 31) - 1, idx(1) << 31, largest_dividend - 1, largest_dividend};
  const idx last = largest_dividend / divisor * divisor;
  for (const idx multiple : {divisor, 2 * divisor, last / 2 / divisor * divisor, last - divisor, last})
    for (const idx n : {multiple - 1, multiple, multiple + 1})
      if (n >= 0 && n <= largest_dividend) edges.push_back(n);
  return edges;
}

}  // namespace

TEST_CASE("math: a fast divisor divides as / does", "[core]") {
  std::mt19937 bits(3);
  std::vector<int> divisors{1,          2,         3,  5,  7,   9,   15,  16,      17,      19,
                            31,         32,        63, 64, 255, 256, 257, 1000000, 1 << 30, (1 << 30) + 1,
                            2147483646, 2147483647};
  for (int i = 0; i < 2000; ++i) divisors.push_back(int(bits() >> (1 + bits() % 30)) | 1);
  long wrong = 0;
  for (const int divisor : divisors) {
    const fast_divisor fast(divisor);
    REQUIRE(fast.value() == divisor);
    for (const idx n : edge_dividends(divisor)) wrong += fast.quotient(n) != n / divisor;
    for (int i = 0; i < 500; ++i) {
      const idx n = idx(bits());
      wrong += fast.quotient(n) != n / divisor;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("math: a fast divisor is a constant expression, and 0 until it is set", "[core]") {
  STATIC_REQUIRE(fast_divisor().value() == 0);
  STATIC_REQUIRE(fast_divisor(19).quotient(56) == 2);
}

TEST_CASE("math: rounding up and extremes", "[core]") {
  CHECK(ceil_div(0, 16) == 0);
  CHECK(ceil_div(1, 16) == 1);
  CHECK(ceil_div(16, 16) == 1);
  CHECK(ceil_div(17, 16) == 2);
  CHECK(ceil_div(idx(1) << 40, 3) == 366503875926);
  CHECK(round_up(0, 128) == 0);
  CHECK(round_up(1, 128) == 128);
  CHECK(round_up(128, 128) == 128);
  CHECK(smaller(-1, 2) == -1);
  CHECK(larger(-1, 2) == 2);
  CHECK(smaller(idx(1) << 40, idx(1) << 41) == idx(1) << 40);
}

TEST_CASE("math: the largest power of two that divides a head dim", "[core]") {
  const int expected[][2] = {{40, 8}, {64, 64}, {72, 8}, {80, 16}, {96, 32}, {112, 16}, {128, 128}, {192, 64}, {1, 1}};
  for (const auto& [n, power] : expected) CHECK(power_of_two_divisor(n) == power);
}
