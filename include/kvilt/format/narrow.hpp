#pragma once

#include <kvilt/format/affine.hpp>

namespace kvilt::inline KVILT_ABI {
namespace detail {

/// Token formats of a few bits, asymmetric: code = round((x - z) / s), s and z in fp16, one pair per token and KV head or
/// per `Group` numbers.
template <int Bits, int D, int Group>
struct affine_rows : row_groups<D, Group> {
  using row_groups<D, Group>::row_groups;
  using row_groups<D, Group>::dim, row_groups<D, Group>::group;

  KVILT_HD constexpr int code_bytes() const { return code_row<Bits>::bytes(dim()); }
  KVILT_HD constexpr int param_bytes() const { return 4 * this->groups(); }  // {scale, zero} of each group

  KVILT_HD void encode(const float* x, row_ref r) const {
    KVILT_FENCE();
    for (int g = 0; g * group() < dim(); ++g) {
      const affine<(1 << Bits) - 1> of(x + g * group(), group());
      write(r.params + 4 * g, of.scale);
      write(r.params + 4 * g + 2, of.zero);
      for (int first = g * group(); first < (g + 1) * group(); first += 8) {
        std::uint64_t codes = 0;
        for (int i = 0; i < 8; ++i) codes |= std::uint64_t(of.code(x[first + i])) << 8 * i;
        code_row<Bits>::write8(r.codes, dim(), first, codes);
      }
    }
  }
  template <int N>
  KVILT_HD void decode(row_ref r, int first, float (&out)[N]) const {
    const unsigned char* params = r.params + 4 * this->group_of(first);
    const float scale = from_fp16(read<std::uint16_t>(params));
    const float zero = from_fp16(read<std::uint16_t>(params + 2));
    unsigned char codes[N];
    for (int i = 0; i < N; i += 8) write(codes + i, code_row<Bits>::read8(r.codes, dim(), first + i));
    for (int i = 0; i < N; ++i) out[i] = scale * float(int(codes[i])) + zero;
  }
};

}  // namespace detail

/// INT3, asymmetric, codes in [0, 7]. The row's codes are a plane of their low 2 bits, code i in bits 2 (i % 4) of byte
/// i / 4, and after it, at byte dim / 4, a plane of their high bits, code i in bit i % 8 of byte i / 8.
template <int D = dynamic, int Group = whole_row>
struct q3 : detail::affine_rows<3, D, Group> {
  using detail::affine_rows<3, D, Group>::affine_rows;
  static constexpr const char* name() { return detail::grouped_name<"q3", Group>(); }
};

/// INT2, asymmetric, codes in [0, 3], four to a byte: code i in bits 2 (i % 4) of byte i / 4. For V, in groups of 32
/// and under a 16-bit tail (Z. Liu et al., "KIVI", 2024); K wants its codes by channel.
template <int D = dynamic, int Group = whole_row>
struct q2 : detail::affine_rows<2, D, Group> {
  using detail::affine_rows<2, D, Group>::affine_rows;
  static constexpr const char* name() { return detail::grouped_name<"q2", Group>(); }
};

static_assert(kv_format<q3<128>> && kv_format<q3<>> && kv_format<q3<128, 64>>);
static_assert(kv_format<q2<128>> && kv_format<q2<>> && kv_format<q2<128, 32>>);

}  // namespace kvilt::inline KVILT_ABI
