#pragma once

#include <kvilt/cache/device_tile.hpp>
#include <kvilt/gpu/ptx.cuh>

/// \file
/// Codes as the tensor cores take them: pairs of 16-bit numbers. What a code is worth is exact in them.

namespace kvilt::inline KVILT_ABI::detail {

/// How numbers of one kind are multiplied. `spread` is how many codes share 16 bits: a 32-bit word holds
/// 2 x `spread` codes, and becomes as many pairs / 2, pair i being codes i and i + `spread`.
template <code_kind Kind>
struct unpacked {
  static constexpr int spread = 16 / bits_of(Kind);
  static constexpr ptx::numbers numbers = Kind == code_kind::bf16 ? ptx::numbers::bf16 : ptx::numbers::fp16;
};

/// Codes that are small integers are fp16 numbers as they stand: the subnormal number of the same bits is 2^-24 of them. So
/// may keys be multiplied, whose offset then belongs to the score. Of four bits, every second pair is 16 times as much.
template <code_kind Kind>
struct raw_codes {
  static constexpr bool exist = Kind == code_kind::u8 || Kind == code_kind::u4;
  static constexpr float unit = exist ? 16777216.0f : 1.0f;  // 2^24
  __device__ static constexpr float times(int pair) { return Kind == code_kind::u4 && pair % 2 == 1 ? 16.0f : 1.0f; }

  __device__ static void unpack(ptx::u32 word, ptx::u32 (&pairs)[unpacked<Kind>::spread]) {
    if constexpr (Kind == code_kind::u8) {
      pairs[0] = word & 0x00ff00ffu;
      pairs[1] = ptx::permute(word, 0u, 0x4341u);
    } else {
      static_assert(Kind == code_kind::u4);
      const ptx::u32 upper = word >> 8;
      pairs[0] = word & 0x000f000fu, pairs[1] = word & 0x00f000f0u;
      pairs[2] = upper & 0x000f000fu, pairs[3] = upper & 0x00f000f0u;
    }
  }
};

/// fp16 and bf16: as they are.
template <code_kind Kind, int Offset>
__device__ void unpack(ptx::u32 word, ptx::u32 (&pairs)[unpacked<Kind>::spread]) {
  using ptx::u32;
  if constexpr (Kind == code_kind::fp16 || Kind == code_kind::bf16) {
    pairs[0] = word;
  } else if constexpr (Kind == code_kind::u8) {
    // 0x64 before a byte: 1024 + code, from which the rest is subtracted exactly.
    constexpr u32 top = 0x6400u + u32(Offset);
    pairs[0] = ptx::subtract_halves(ptx::permute(word, 0x64646464u, 0x4240u), top << 16 | top);
    pairs[1] = ptx::subtract_halves(ptx::permute(word, 0x64646464u, 0x4341u), top << 16 | top);
  } else if constexpr (Kind == code_kind::e5m2) {
    // E5M2 is the upper byte of fp16.
    pairs[0] = word << 8 & 0xff00ff00u;
    pairs[1] = word & 0xff00ff00u;
  } else if constexpr (Kind == code_kind::e4m3) {
    const u32 ordered = ptx::permute(word, 0u, 0x3120u);  // bytes 0 and 2, then 1 and 3
#if __CUDA_ARCH__ >= 890
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high;}"
        : "=r"(pairs[0]), "=r"(pairs[1])
        : "r"(ordered));
#else
    // As bits of fp16 the exponent's bias is 8 too small: times 2^8. 0x7f, which is NaN, becomes 480 there.
    for (int i = 0; i < 2; ++i) {
      const u32 bytes = ptx::permute(ordered, 0u, i == 0 ? 0x1404u : 0x3424u);  // in the upper halves
      const u32 bits = (bytes & 0x80008000u) | (bytes & 0x7f007f00u) >> 1;
      const u32 nan = __vcmpeq2(bytes & 0x7f007f00u, 0x7f007f00u) & 0x7fff7fffu;
      pairs[i] = ptx::multiply_add_halves(bits, 0x5c005c00u, 0x80008000u) | nan;
    }
#endif
  } else {
    static_assert(Kind == code_kind::u4);
    // 0x64 before a nibble: 1024 + code; before a nibble four bits higher: 1024 + 16 code.
    constexpr u32 low = 0x6400u + u32(Offset), magic = 0x64006400u;
    constexpr u32 sixteenth = 0x2c002c00u, high = 0xd400u + u32(Offset) * 16;  // -(64 + Offset)
    const u32 upper = word >> 8;
    pairs[0] = ptx::subtract_halves(ptx::and_or(word, 0x000f000fu, magic), low << 16 | low);
    pairs[1] = ptx::multiply_add_halves(ptx::and_or(word, 0x00f000f0u, magic), sixteenth, high << 16 | high);
    pairs[2] = ptx::subtract_halves(ptx::and_or(upper, 0x000f000fu, magic), low << 16 | low);
    pairs[3] = ptx::multiply_add_halves(ptx::and_or(upper, 0x00f000f0u, magic), sixteenth, high << 16 | high);
  }
}

/// 16 bytes of codes as pairs in their order.
template <code_kind Kind, int Offset>
__device__ void unpack_in_order(const uint4& codes, ptx::u32 (&pairs)[4 * unpacked<Kind>::spread]) {
  constexpr int spread = unpacked<Kind>::spread;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    ptx::u32 apart[spread];
    unpack<Kind, Offset>(w == 0 ? codes.x : w == 1 ? codes.y : w == 2 ? codes.z : codes.w, apart);
#pragma unroll
    for (int s = 0; s < spread / 2; ++s) {
      pairs[w * spread + s] = ptx::permute(apart[2 * s], apart[2 * s + 1], 0x5410u);
      pairs[w * spread + spread / 2 + s] = ptx::permute(apart[2 * s], apart[2 * s + 1], 0x7632u);
    }
  }
}

/// Are 16 bytes of codes all finite numbers? Whole ones are. Of others that are not, all bits of the exponent are set, or of
/// e4m3 all but the sign: one more in the last of these is the sign's place.
template <code_kind Kind>
__device__ bool is_finite(const uint4& codes) {
  if constexpr (Kind == code_kind::u8 || Kind == code_kind::u4) {
    return true;
  } else {
    constexpr bool wide = Kind == code_kind::fp16 || Kind == code_kind::bf16;
    static_assert(wide || Kind == code_kind::e4m3 || Kind == code_kind::e5m2);
    constexpr ptx::u32 last = Kind == code_kind::fp16   ? 0x04000400u
                              : Kind == code_kind::bf16 ? 0x00800080u
                              : Kind == code_kind::e4m3 ? 0x01010101u
                                                        : 0x04040404u;
    constexpr ptx::u32 signs = wide ? 0x80008000u : 0x80808080u;
    const auto beyond = [](ptx::u32 word) { return (word & ~signs) + last; };
    return ((beyond(codes.x) | beyond(codes.y) | beyond(codes.z) | beyond(codes.w)) & signs) == 0;
  }
}

}  // namespace kvilt::inline KVILT_ABI::detail
