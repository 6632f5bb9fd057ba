#pragma once

#include <kvilt/format/format.hpp>

namespace kvilt::inline KVILT_ABI {

/// 32-bit floats: the exact reference, 4 bytes a number.
template <int D = dynamic>
struct fp32 : extent<D> {
  using extent<D>::extent;
  static constexpr int rows = 1;
  static constexpr plain_codes plain{code_kind::fp32};
  static constexpr const char* name() { return "fp32"; }

  KVILT_HD constexpr int dim() const { return this->get(); }
  KVILT_HD constexpr int code_bytes() const { return 4 * dim(); }
  KVILT_HD constexpr int param_bytes() const { return 0; }
  KVILT_HD void encode(const float* x, row_ref r) const { __builtin_memcpy(r.codes, x, std::size_t(code_bytes())); }
  template <int N>
  KVILT_HD void decode(row_ref r, int first, float (&out)[N]) const {
    __builtin_memcpy(out, r.codes + 4 * first, sizeof(out));
  }
};

namespace detail {

/// Formats whose codes are 16-bit floats, converted one by one.
template <int D, std::uint16_t (*Narrow)(float), float (*Widen)(std::uint16_t)>
struct float_16 : extent<D> {
  using extent<D>::extent;
  static constexpr int rows = 1;

  KVILT_HD constexpr int dim() const { return this->get(); }
  KVILT_HD constexpr int code_bytes() const { return 2 * dim(); }
  KVILT_HD constexpr int param_bytes() const { return 0; }
  KVILT_HD void encode(const float* x, row_ref r) const {
    for (int i = 0; i < dim(); ++i) write(r.codes + 2 * i, Narrow(x[i]));
  }
  template <int N>
  KVILT_HD void decode(row_ref r, int first, float (&out)[N]) const {
    std::uint16_t codes[N];
    __builtin_memcpy(codes, r.codes + 2 * first, sizeof(codes));
    for (int i = 0; i < N; ++i) out[i] = Widen(codes[i]);
  }
};

}  // namespace detail

/// IEEE binary16; finite overflow saturates at 65504.
template <int D = dynamic>
struct fp16 : detail::float_16<D, to_fp16_saturating, from_fp16> {
  using detail::float_16<D, to_fp16_saturating, from_fp16>::float_16;
  static constexpr plain_codes plain{code_kind::fp16};
  static constexpr const char* name() { return "fp16"; }
};

/// bfloat16; finite overflow saturates at the largest finite number.
template <int D = dynamic>
struct bf16 : detail::float_16<D, to_bf16_saturating, from_bf16> {
  using detail::float_16<D, to_bf16_saturating, from_bf16>::float_16;
  static constexpr plain_codes plain{code_kind::bf16};
  static constexpr const char* name() { return "bf16"; }
};

static_assert(kv_format<fp32<64>> && kv_format<fp16<>> && kv_format<bf16<128>>);

}  // namespace kvilt::inline KVILT_ABI
