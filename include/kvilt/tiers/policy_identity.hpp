#pragma once

#include <kvilt/cache/policy.hpp>

#include <string>

namespace kvilt::inline KVILT_ABI::detail {

template <class F>
consteval bool check_saved_format() {
  static_assert(
      requires {
        { F::name() } -> std::convertible_to<const char*>;
      },
      "kvilt: a file names the formats of its rows: to be saved a format needs `static constexpr const char* name()`");
  return true;
}

/// A format and its records: "q4 of 128, records of 1 x 64 + 4 bytes".
template <class F>
std::string format_identity(const F& f) {
  static_assert(check_saved_format<F>());
  std::string text = F::name();
  text += " of " + std::to_string(f.dim()) + ", records of " + std::to_string(F::rows) + " x " +
          std::to_string(f.code_bytes()) + " + " + std::to_string(f.param_bytes()) + " bytes";
  if constexpr (requires { f.fingerprint(); }) text += ", state " + std::to_string(f.fingerprint());
  return text;
}

/// All of a policy that decides which rows a sequence has and what bytes they are: not its layout.
template <class Policy>
std::string policy_identity(const Policy& p) {
  std::string text = "K " + format_identity(p.k) + "; V " + format_identity(p.v) + "; " + p.retention.name();
  if constexpr (Policy::retention_type::slides) text += " " + std::to_string(p.retention.width());
  if constexpr (Policy::sinks > 0) text += "; sinks " + std::to_string(Policy::sinks);
  if constexpr (Policy::tail > 0) text += "; tail " + std::to_string(Policy::tail);
  if constexpr (Policy::exact_sinks > 0 || Policy::tail > 0)
    text += std::string(Policy::exact_sinks > 0 ? "; sinks and tail in " : "; tail in ") +
            format_identity(p.k_exact()) + " and " + format_identity(p.v_exact());
  return text;
}

}  // namespace kvilt::inline KVILT_ABI::detail
