#pragma once

#include <kvilt/format/format.hpp>

namespace kvilt::inline KVILT_ABI {
namespace detail {

/// Formats whose codes are 8-bit floats: s = max|x| / `Largest` in fp16, one per token and KV head, or one per `Group`
/// numbers of the row.
template <int D, int Group, std::uint8_t (*Narrow)(float), float (*Widen)(std::uint8_t), int Largest>
struct float_8 : row_groups<D, Group> {
  using row_groups<D, Group>::row_groups;
  using row_groups<D, Group>::dim, row_groups<D, Group>::group;

  KVILT_HD constexpr int code_bytes() const { return dim(); }
  KVILT_HD constexpr int param_bytes() const { return 2 * this->groups(); }

  KVILT_HD void encode(const float* x, row_ref r) const {
    KVILT_FENCE();
    for (int g = 0; g * group() < dim(); ++g) {
      const int first = g * group();
      const std::uint16_t scale = stored_scale(largest_magnitude(x + first, group()), float(Largest));
      const float inverse = divide(1.0f, from_fp16(scale));
      write(r.params + 2 * g, scale);
      for (int i = first; i < first + group(); ++i) r.codes[i] = Narrow(x[i] * inverse);
    }
  }
  template <int N>
  KVILT_HD void decode(row_ref r, int first, float (&out)[N]) const {
    const float scale = from_fp16(read<std::uint16_t>(r.params + 2 * this->group_of(first)));
    for (int i = 0; i < N; ++i) out[i] = scale * Widen(r.codes[first + i]);
  }
};

}  // namespace detail

/// FP8 E4M3 with one fp16 scale per token and KV head, or per `Group` numbers of the row, so that the largest magnitude
/// of these is 448. At equal bytes int8 (`q8`) is more accurate for rows without outliers; what E4M3 has is range
/// within the row.
template <int D = dynamic, int Group = whole_row>
struct e4m3 : detail::float_8<D, Group, to_e4m3, from_e4m3, 448>,
              detail::plain_if<Group == whole_row, code_kind::e4m3, param_kind::scale16> {
  using detail::float_8<D, Group, to_e4m3, from_e4m3, 448>::float_8;
  static constexpr const char* name() { return detail::grouped_name<"e4m3", Group>(); }
};

/// FP8 E5M2, scaled alike: half of E4M3's precision, and 18 more powers of two of range within the row.
template <int D = dynamic, int Group = whole_row>
struct e5m2 : detail::float_8<D, Group, to_e5m2, from_e5m2, 57344>,
              detail::plain_if<Group == whole_row, code_kind::e5m2, param_kind::scale16> {
  using detail::float_8<D, Group, to_e5m2, from_e5m2, 57344>::float_8;
  static constexpr const char* name() { return detail::grouped_name<"e5m2", Group>(); }
};

static_assert(kv_format<e4m3<128>> && kv_format<e4m3<>> && kv_format<e4m3<512, 128>>);
static_assert(kv_format<e5m2<128>> && kv_format<e5m2<>>);

}  // namespace kvilt::inline KVILT_ABI
