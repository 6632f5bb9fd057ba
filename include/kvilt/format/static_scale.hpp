#pragma once

#include <kvilt/format/format.hpp>

namespace kvilt::inline KVILT_ABI {
namespace detail {

/// What a static scale may be. NOTE: with these bounds neither its inverse nor a code times it leaves fp32's normal
/// numbers, so codes are the same where subnormals are flushed.
inline constexpr float smallest_static_scale = 0x1p-126f, largest_static_scale = 0x1p112f;

/// Formats of one byte a number whose scale the caller has: r.params is a float of its own, read and never written.
template <int D, std::uint8_t (*Narrow)(float), float (*Widen)(std::uint8_t)>
struct static_scaled : extent<D> {
  using extent<D>::extent;
  static constexpr int rows = 1;
  static constexpr bool static_params = true;

  KVILT_HD constexpr int dim() const { return this->get(); }
  KVILT_HD constexpr int code_bytes() const { return dim(); }
  KVILT_HD constexpr int param_bytes() const { return 0; }

  KVILT_HD void encode(const float* x, row_ref r) const {
    KVILT_FENCE();
    const float inverse = divide(1.0f, read<float>(r.params));
    for (int i = 0; i < dim(); ++i) r.codes[i] = Narrow(x[i] * inverse);
  }
  template <int N>
  KVILT_HD void decode(row_ref r, int first, float (&out)[N]) const {
    const float scale = read<float>(r.params);
    for (int i = 0; i < N; ++i) out[i] = scale * Widen(r.codes[first + i]);
  }
};

/// A signed byte with 128 added; 0 stands for NaN, which no scale of the row is there to tell.
KVILT_HD inline std::uint8_t to_int8(float x) {
  return is_nan(x) ? std::uint8_t(0) : static_cast<std::uint8_t>(nearest_code(x, -127, 127) + 128);
}
KVILT_HD inline float from_int8(std::uint8_t c) {
  return c == 0 ? float_of(0x7fc00000u) : float(int(c) - 128);
}

}  // namespace detail

/// FP8 E4M3 at a scale known beforehand, of the tensor or of each KV head, as checkpoints of FP8 models carry it:
/// code = x / s, saturated at 448. There is no default scale: at 1.0, values below 2^-6 would be subnormal.
template <int D = dynamic>
struct e4m3_static : detail::static_scaled<D, to_e4m3, from_e4m3> {
  using detail::static_scaled<D, to_e4m3, from_e4m3>::static_scaled;
  static constexpr plain_codes plain{code_kind::e4m3, param_kind::scale32};
  static constexpr const char* name() { return "e4m3_static"; }
};

/// FP8 E5M2 at a scale known beforehand; saturates at 57344.
template <int D = dynamic>
struct e5m2_static : detail::static_scaled<D, to_e5m2, from_e5m2> {
  using detail::static_scaled<D, to_e5m2, from_e5m2>::static_scaled;
  static constexpr plain_codes plain{code_kind::e5m2, param_kind::scale32};
  static constexpr const char* name() { return "e5m2_static"; }
};

/// INT8, symmetric, at a scale known beforehand: code = round(x / s) + 128 in [1, 255]; 0 is NaN. NOTE: so not `plain`:
/// what reads codes without `decode` would take a NaN for -128.
template <int D = dynamic>
struct q8_static : detail::static_scaled<D, detail::to_int8, detail::from_int8> {
  using detail::static_scaled<D, detail::to_int8, detail::from_int8>::static_scaled;
  static constexpr const char* name() { return "q8_static"; }
};

static_assert(kv_format<e4m3_static<128>> && kv_format<e5m2_static<>> && kv_format<q8_static<>>);
static_assert(has_static_scale<q8_static<>>);

}  // namespace kvilt::inline KVILT_ABI
