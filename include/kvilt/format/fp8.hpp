#pragma once

#include <kvilt/format/format.hpp>

namespace kvilt::inline KVILT_ABI {

/// FP8 E4M3 with one fp16 scale per token and KV head, so that the row's largest magnitude is 448.
/// At equal bytes int8 (`q8`) is more accurate for rows without outliers; what E4M3 has is range within the row.
template <int D = dynamic>
struct e4m3 : extent<D> {
  using extent<D>::extent;
  static constexpr int rows = 1;
  static constexpr plain_codes plain{code_kind::e4m3, param_kind::scale16};
  static constexpr const char* name() { return "e4m3"; }

  KVILT_HD constexpr int dim() const { return this->get(); }
  KVILT_HD constexpr int code_bytes() const { return dim(); }
  KVILT_HD constexpr int param_bytes() const { return 2; }

  KVILT_HD void encode(const float* x, row_ref r) const {
    KVILT_FENCE();
    std::uint32_t largest = 0;
    for (int i = 0; i < dim(); ++i) largest = magnitude_bits(x[i]) > largest ? magnitude_bits(x[i]) : largest;
    const std::uint16_t scale = detail::stored_scale(float_of(largest), 448.0f);
    const float inverse = detail::divide(1.0f, from_fp16(scale));
    detail::write(r.params, scale);
    for (int i = 0; i < dim(); ++i) r.codes[i] = to_e4m3(x[i] * inverse);
  }
  template <int N>
  KVILT_HD void decode(row_ref r, int first, float (&out)[N]) const {
    const float scale = from_fp16(detail::read<std::uint16_t>(r.params));
    for (int i = 0; i < N; ++i) out[i] = scale * from_e4m3(r.codes[first + i]);
  }
};

static_assert(kv_format<e4m3<128>> && kv_format<e4m3<>>);

}  // namespace kvilt::inline KVILT_ABI
