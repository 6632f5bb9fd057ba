#pragma once

#include <kvilt/format/affine.hpp>

namespace kvilt::inline KVILT_ABI {

namespace detail {

/// A signed byte with 128 added; NaN is the lowest.
KVILT_HD inline std::uint8_t to_centred_byte(float x) {
  return static_cast<std::uint8_t>(nearest_code(x, -127, 127) + 128);
}

}  // namespace detail

/// INT8, symmetric: code = round(x / s) + 128 in one byte, s = max|x| / 127 in fp16, one per token and KV head, or one
/// per `Group` numbers of the row. |x - decoded| <= s / 2. The scale is rounded before codes are made, never 0, and
/// NaN where the row holds a NaN.
template <int D = dynamic, int Group = whole_row>
struct q8 : detail::row_groups<D, Group>,
            detail::plain_if<Group == whole_row, code_kind::u8, param_kind::scale16, 128> {
  using detail::row_groups<D, Group>::row_groups;
  using detail::row_groups<D, Group>::dim, detail::row_groups<D, Group>::group;
  static constexpr const char* name() { return detail::grouped_name<"q8", Group>(); }

  KVILT_HD constexpr int code_bytes() const { return dim(); }
  KVILT_HD constexpr int param_bytes() const { return 2 * this->groups(); }

  KVILT_HD void encode(const float* x, row_ref r) const {
    KVILT_FENCE();
    for (int g = 0; g * group() < dim(); ++g) {
      const int first = g * group();
      const std::uint16_t scale = detail::stored_scale(detail::largest_magnitude(x + first, group()), 127.0f);
      const float inverse = detail::divide(1.0f, from_fp16(scale));
      detail::write(r.params + 2 * g, scale);
      for (int i = first; i < first + group(); ++i) r.codes[i] = detail::to_centred_byte(x[i] * inverse);
    }
  }
  template <int N>
  KVILT_HD void decode(row_ref r, int first, float (&out)[N]) const {
    const float scale = from_fp16(detail::read<std::uint16_t>(r.params + 2 * this->group_of(first)));
    for (int i = 0; i < N; ++i) out[i] = scale * float(int(r.codes[first + i]) - 128);
  }
};

/// INT4, asymmetric: code = round((x - z) / s) in [0, 15], two to a byte, the even dim in the low nibble; s and z in
/// fp16, one pair per token and KV head, or per `Group` numbers. z is the smallest x rounded down, so a row far from
/// zero still spans its codes.
template <int D = dynamic, int Group = whole_row>
struct q4 : detail::row_groups<D, Group>, detail::plain_if<Group == whole_row, code_kind::u4, param_kind::scale_zero> {
  using detail::row_groups<D, Group>::row_groups;
  using detail::row_groups<D, Group>::dim, detail::row_groups<D, Group>::group;
  static constexpr const char* name() { return detail::grouped_name<"q4", Group>(); }

  KVILT_HD constexpr int code_bytes() const { return dim() / 2; }
  KVILT_HD constexpr int param_bytes() const { return 4 * this->groups(); }  // {scale, zero} of each group

  KVILT_HD void encode(const float* x, row_ref r) const {
    KVILT_FENCE();
    for (int g = 0; g * group() < dim(); ++g)
      encode_group(x + g * group(), r.codes + g * group() / 2, r.params + 4 * g);
  }
  template <int N>
  KVILT_HD void decode(row_ref r, int first, float (&out)[N]) const {
    const unsigned char* params = r.params + 4 * this->group_of(first);
    const float scale = from_fp16(detail::read<std::uint16_t>(params));
    const float zero = from_fp16(detail::read<std::uint16_t>(params + 2));
    unsigned char codes[N];
    for (int i = 0; i < N; i += 8)
      detail::write(codes + i, detail::spread<4>(detail::read<std::uint32_t>(r.codes + (first + i) / 2)));
    for (int i = 0; i < N; ++i) out[i] = scale * float(int(codes[i])) + zero;
  }

 private:
  KVILT_HD void encode_group(const float* x, unsigned char* codes, unsigned char* params) const {
    const detail::affine<15> of(x, group());
    detail::write(params, of.scale);
    detail::write(params + 2, of.zero);
    for (int i = 0; i < group() / 2; ++i)
      codes[i] = static_cast<unsigned char>(of.code(x[2 * i]) | of.code(x[2 * i + 1]) << 4);
  }
};

static_assert(kv_format<q8<128>> && kv_format<q8<>> && kv_format<q8<128, 32>>);
static_assert(kv_format<q4<128>> && kv_format<q4<>> && kv_format<q4<128, 32>>);

}  // namespace kvilt::inline KVILT_ABI
