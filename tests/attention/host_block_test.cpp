#include "support/catch.hpp"

#include <kvilt/attention/host_block.hpp>

namespace {

using kvilt::detail::exp_nonpositive;

// Steps of fp32 between `got` and e^x.
double steps_off(float x, float got) {
  const double want = std::exp(double(x));
  const float nearest = float(want);
  return std::abs(double(got) - want) / double(std::nextafter(nearest, 2.0f) - nearest);
}

}  // namespace

TEST_CASE("host_block: the exponential of what is not positive is right to two units in the last place",
          "[attention]") {
  CHECK(exp_nonpositive(0.0f) == 1.0f);
  CHECK(exp_nonpositive(-0.0f) == 1.0f);
  double worst = 0;
  int last = 0;
  for (int i = 0; i <= 2'000'000; ++i) {
    const float x = -87.0f * float(i) / 2e6f;
    const double off = steps_off(x, exp_nonpositive(x));
    if (off > worst) worst = off, last = i;
  }
  // Around each change of the power of two, and close to 0.
  for (int n = 0; n < 126; ++n)
    for (int i = -200; i <= 200; ++i) {
      const float x = std::min(0.0f, -(float(n) + 0.5f) * 0.693147181f + float(i) * 4e-6f);
      if (x >= -87.0f) worst = std::max(worst, steps_off(x, exp_nonpositive(x)));
    }
  for (float x = -1e-30f; x > -1.0f; x *= 1.01f) worst = std::max(worst, steps_off(x, exp_nonpositive(x)));
  INFO("item " << last);
  CHECK(worst <= 2);
}

TEST_CASE("host_block: the exponential vanishes below -87, and at minus infinity", "[attention]") {
  CHECK(exp_nonpositive(-87.0f) > 0.0f);
  for (const float x : {std::nextafter(-87.0f, -88.0f), -88.0f, -1e4f, -3e38f, -std::numeric_limits<float>::infinity()})
    CHECK(exp_nonpositive(x) == 0.0f);
  CHECK(std::isnan(exp_nonpositive(std::numeric_limits<float>::quiet_NaN())));
}
