#pragma once

#include <kvilt/attention/gpu/codes.cuh>
#include <kvilt/attention/positions.hpp>
#include <kvilt/core/floats.hpp>

#include <type_traits>

namespace kvilt::inline KVILT_ABI::detail {

/// What the compiler knows of how a segment's keys, or values, are multiplied.
template <kv_format F, int DimStep>
struct code_traits {
  static constexpr bool decoded = !multiplied_as_codes<F>();
  static consteval code_kind kind() {
    if constexpr (decoded)
      return code_kind::bf16;
    else
      return F::plain.codes;
  }
  static consteval param_kind params() {
    if constexpr (decoded)
      return param_kind::none;
    else
      return F::plain.params;
  }
  static consteval int offset() {
    if constexpr (decoded)
      return 0;
    else
      return F::plain.offset;
  }
  static constexpr int spread = unpacked<kind()>::spread;
  static constexpr ptx::numbers numbers = unpacked<kind()>::numbers;
  static constexpr int dim = padded_dim<F>(DimStep);
  static constexpr int pitch = int(round_up(idx(dim) * bits_of(kind()) / 8, 64));
  /// Two chunks of 16 bytes of each row at a time.
  static constexpr int blocks = int(ceil_div(idx(dim) * bits_of(kind()) / 8, 32));
  /// Products of 16 numbers that a score is the sum of.
  static constexpr int products = blocks * spread;
};

/// 16-bit numbers whose sum is a number of a query. One where it says it, or where keys are so coarse that it makes no
/// difference; else two.
template <class Task, class Keys>
consteval int query_terms() {
  using q = typename Task::query_type;
  constexpr bool turned = !std::is_same_v<typename Task::view_type::k_rotation, no_rotation> ||
                          std::is_same_v<typename Task::positions_type, cache_positions>;
  if constexpr (Keys::decoded)
    return 2;
  else if constexpr (Keys::kind() == code_kind::bf16)
    return std::is_same_v<q, bfloat16> && !turned ? 1 : 2;
  else if constexpr (Keys::kind() == code_kind::fp16)
    return !std::is_same_v<q, float> && !turned ? 1 : 2;
  else
    return 1;
}

}  // namespace kvilt::inline KVILT_ABI::detail
