#include "exponential.hpp"

#include "metrics.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

TEST_CASE("exponential: right to two units in the last place", "[examples]") {
  double worst_float = 0, worst_double = 0;
  for (int i = 0; i <= 400000; ++i) {
    const double x = -87.0 + 175.0 * i / 400000;
    const auto rounded = static_cast<float>(x);
    const double expected = std::exp(static_cast<double>(rounded));
    worst_float =
        std::max(worst_float, std::abs(static_cast<double>(example::vector_exp(rounded)) - expected) / expected);
    const double far = 8 * x, exact = std::exp(far);
    worst_double = std::max(worst_double, std::abs(example::vector_exp(far) - exact) / exact);
  }
  CHECK(worst_float < 0x1p-22);
  CHECK(worst_double < 0x1p-51);
  CHECK(example::vector_exp(0.0f) == 1.0f);
  CHECK(example::vector_exp(0.0) == 1.0);
}

TEST_CASE("exponential: stays finite, and NaN stays NaN", "[examples]") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {-infinity, -1e30f, -88.0f}) CHECK(example::vector_exp(x) == Approx(std::exp(-87.0f)));
  for (const float x : {infinity, 1e30f, 89.0f}) CHECK(example::vector_exp(x) == Approx(std::exp(88.0f)));
  CHECK(std::isnan(example::vector_exp(std::numeric_limits<float>::quiet_NaN())));
  CHECK(std::isnan(example::vector_exp(std::numeric_limits<double>::quiet_NaN())));
  CHECK(std::isfinite(example::vector_exp(1e300)));
  CHECK(example::vector_exp(-1e300) < 1e-300);
}

TEST_CASE("exponential: the likeliest token is the first of the largest logits", "[examples]") {
  for (const int vocab : {1, 15, 16, 17, 283}) {
    for (const int top : {0, vocab / 2, vocab - 1}) {
      std::vector<float> logits(static_cast<std::size_t>(vocab), -2.0f);
      logits[static_cast<std::size_t>(top)] = logits.back() = 3.0f;
      const example::distribution d = example::distribution_of(logits.data(), vocab);
      CHECK(d.top == top);
      double sum = 0;
      for (const float l : logits) sum += std::exp(static_cast<double>(l));
      CHECK(d.log_sum == Approx(std::log(sum)).epsilon(1e-12));
    }
  }
}
