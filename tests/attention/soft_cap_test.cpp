#include "support/catch.hpp"
#include "support/tensors.hpp"

#include <kvilt/attention/soft_cap.hpp>

namespace {

using namespace kvilt;
using namespace support;
using kvilt::detail::tanh_rational;

struct capped_band : band {
  double cap;
  capped_band(idx q, double c) : band(q, 1 << 30), cap(c) {}
  double score(const oracle_key&, double s) const { return cap * std::tanh(s / cap); }
};

}  // namespace

TEST_CASE("soft_cap: the hyperbolic tangent is right to six units in the last place, odd, and never beyond 1",
          "[attention]") {
  double worst = 0;
  bool odd = true, within = true;
  const auto look = [&](float x) {
    const float got = tanh_rational(x);
    const double want = std::tanh(double(x));
    const float nearest = float(want);
    worst = std::max(worst, std::abs(double(got) - want) / double(std::nextafter(nearest, 2.0f) - nearest));
    odd &= tanh_rational(-x) == -got;
    within &= got <= 1;
  };
  for (int i = 1; i <= 1'000'000; ++i) look(12 * float(i) / 1e6f);
  for (float x = 1e-30f; x < 1; x *= 1.01f) look(x);
  CHECK(worst <= 6);
  CHECK(odd);
  CHECK(within);
  CHECK(tanh_rational(0.0f) == 0.0f);
  CHECK(tanh_rational(1e30f) == Approx(1));
  CHECK(tanh_rational(std::numeric_limits<float>::infinity()) == Approx(1));
  CHECK(std::isnan(tanh_rational(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("soft_cap: scores are capped after the scale", "[attention]") {
  const text t(90, 2, 16, 24);
  tensor<float> q = random_tensor(9, 40, 4, 16);
  for (float& x : q.data) x *= 8;
  const planned_step s(host(), {90}, {0}, {40}, 16, 24);
  for (const float cap : {0.5f, 3.0f, 50.0f})
    CHECK(wrong_answers(t, s->items[0], q, t.attend(attention{compose(causal{}, soft_cap{cap})}, s, q), 0.25,
                        [&](int, idx position, int) { return capped_band(position, double(cap)); }) == "");
}
