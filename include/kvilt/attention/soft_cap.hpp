#pragma once

#include <kvilt/attention/variant.hpp>

namespace kvilt::inline KVILT_ABI {
namespace detail {

/// The hyperbolic tangent to six units in the last place, never beyond +-1, as straight code that compilers vectorise
/// and that gives the host and the device the same: a rational minimax fit of tanh(x) / x in x^2 on [0, 7.9], made for
/// this library.
KVILT_HD constexpr float tanh_rational(float x) {
  x = x > 7.9f ? 7.9f : x < -7.9f ? -7.9f : x;
  const float z = x * x;
  const float p = (((1.5428352e-08f * z + 2.2023534e-05f) * z + 0.0035790103f) * z + 0.13450636f) * z + 1.0f;
  const float q = (((8.5989404e-07f * z + 0.000342368f) * z + 0.026192307f) * z + 0.46783963f) * z + 1.0f;
  return x * p / q;
}

}  // namespace detail

/// Scores stay within +-cap: cap tanh(s / cap), after the scale (M. Rivière et al., "Gemma 2", 2024, section 2; Grok).
struct soft_cap {
  float cap = 0;  // 0: none

  void check() const {
    detail::expects(cap >= 0 && cap <= 0x1p127f, "scores are capped at ", cap,
                    "; 0 or a positive, finite number is needed");
  }
  KVILT_HD constexpr float score(const where&, float s) const {
    return cap == 0 ? s : cap * detail::tanh_rational(s / cap);
  }
};

static_assert(attention_variant<soft_cap>);

}  // namespace kvilt::inline KVILT_ABI
