#pragma once

#include <kvilt/core/floats.hpp>
#include <kvilt/core/types.hpp>

#include <cuda_runtime.h>

#include <type_traits>

/// \file
/// What lets neighbouring lanes of a warp work on one row together: each has 16 numbers of it, lane l those from 16 l on.

namespace kvilt::inline KVILT_ABI::detail {

inline constexpr int lane_numbers = 16;
/// Numbers of the longest row that the lanes of a warp hold at once.
inline constexpr int longest_lane_row = 32 * lane_numbers;

/// Lanes for a row: a power of two, at most a warp.
KVILT_HD constexpr int lanes_for(int dim) {
  int lanes = 1;
  while (lanes < 32 && lanes * lane_numbers < dim) lanes *= 2;
  return lanes;
}

/// Neighbouring lanes. NOTE: what one of a warp's groups does together all do, also those that have nothing to do then:
/// shuffles by a part of a warp cost several instructions more.
struct lane_group {
  int lane = 0;  // this thread's
  int size = 1;  // a power of two

  __device__ explicit lane_group(int lanes) : lane(int(threadIdx.x) & (lanes - 1)), size(lanes) {}
  __device__ void sync() const { __syncwarp(); }
  /// What the lane has whose number differs in `bit`.
  template <class T>
  __device__ T other(T value, int bit) const {
    return __shfl_xor_sync(0xffffffffu, value, bit);
  }
  /// How many of this lane's numbers a row of `dim` has: 0, 8 or 16.
  __device__ int live(int dim) const {
    const int left = dim - lane * lane_numbers;
    return left >= lane_numbers ? lane_numbers : left > 0 ? left : 0;
  }
};

/// 16 numbers as they come, so that many are on their way at once and few registers wait for them.
template <class T>
struct raw_numbers {
  static constexpr int words = lane_numbers * int(sizeof(T)) / 4;
  std::uint32_t word[words] = {};

  /// from: this lane's first number. `wide`: it lies on a 16-byte line.
  __device__ void load(const T* from, int live, bool wide) {
    if (wide) {
#pragma unroll
      for (int i = 0; i < words / 4; ++i) {
        if (i * 16 >= live * int(sizeof(T))) break;
        const uint4 four = *reinterpret_cast<const uint4*>(reinterpret_cast<const unsigned char*>(from) + 16 * i);
        word[4 * i] = four.x, word[4 * i + 1] = four.y, word[4 * i + 2] = four.z, word[4 * i + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < lane_numbers; ++i)
        if (i < live) put(i, from[i]);
    }
  }
  __device__ float operator[](int i) const {
    if constexpr (sizeof(T) == 4) return float_of(word[i]);
    const std::uint16_t half = std::uint16_t(word[i / 2] >> 16 * (i & 1));
    if constexpr (std::is_same_v<T, bfloat16>)
      return from_bf16(half);
    else
      return from_fp16(half);
  }

 private:
  __device__ void put(int i, float x) {
    word[i] = kvilt::bits_of(x);
  }
  __device__ void put(int i, float16 x) {
    word[i / 2] |= std::uint32_t(x.bits) << 16 * (i & 1);
  }
  __device__ void put(int i, bfloat16 x) {
    word[i / 2] |= std::uint32_t(x.bits) << 16 * (i & 1);
  }
};

/// Do all rows lie on 16-byte lines?
template <class T>
bool on_lines(const rows<T>& x) {
  const std::uintptr_t size = sizeof(T);
  return (reinterpret_cast<std::uintptr_t>(x.data) | std::uintptr_t(x.token_stride) * size |
          std::uintptr_t(x.head_stride) * size) %
             16 ==
         0;
}

/// Writes the codes of `live` of 16 numbers, as wide as they lie.
template <int Words>
__device__ inline void store_words(unsigned char* to, const std::uint32_t (&word)[Words], int live) {
  const unsigned skew = unsigned(reinterpret_cast<std::uintptr_t>(to)) & 15u;
  if (live == lane_numbers && skew == 0 && Words >= 4) {
#pragma unroll
    for (int i = 0; i < Words / 4; ++i)
      reinterpret_cast<uint4*>(to)[i] = {word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]};
  } else if (live == lane_numbers && skew % 8 == 0) {
#pragma unroll
    for (int i = 0; i < Words / 2; ++i) reinterpret_cast<uint2*>(to)[i] = {word[2 * i], word[2 * i + 1]};
  } else {
#pragma unroll
    for (int i = 0; i < Words; ++i) {
      if (i * lane_numbers >= live * Words) break;
      if (skew % 4 == 0) {
        reinterpret_cast<std::uint32_t*>(to)[i] = word[i];
      } else {
#pragma unroll
        for (int byte = 0; byte < 4; ++byte) to[4 * i + byte] = static_cast<unsigned char>(word[i] >> 8 * byte);
      }
    }
  }
}

/// Two numbers as 16-bit floats, the first in the low half; saturated as the cache stores them.
template <std::uint16_t (*Narrow)(float)>
__device__ inline std::uint32_t narrow_two(float a, float b) {
#if defined(__CUDA_ARCH__)
  std::uint32_t both;
  constexpr bool bf16 = Narrow == to_bf16_saturating || Narrow == to_bf16;
  if constexpr (bf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
  constexpr std::uint32_t infinite = bf16 ? 0x7f80u : 0x7c00u;
  const bool rare = (both & 0x7fffu) == infinite || (both >> 16 & 0x7fffu) == infinite;
  if (!rare) return both;
#endif
  return Narrow(a) | std::uint32_t(Narrow(b)) << 16;
}

/// 16 numbers as a caller's tensor holds them: what `store` writes.
template <class T>
__device__ inline void pack_numbers(const float (&x)[lane_numbers], std::uint32_t (&word)[raw_numbers<T>::words]) {
#pragma unroll
  for (int i = 0; i < raw_numbers<T>::words; ++i) {
    if constexpr (sizeof(T) == 4)
      word[i] = kvilt::bits_of(x[i]);
    else if constexpr (std::is_same_v<T, bfloat16>)
      word[i] = narrow_two<to_bf16>(x[2 * i], x[2 * i + 1]);
    else
      word[i] = narrow_two<to_fp16>(x[2 * i], x[2 * i + 1]);
  }
}

/// Four numbers as bytes, the first lowest. NOTE: what hardware converts is what `Narrow` says, bit for bit.
template <std::uint8_t (*Narrow)(float)>
__device__ inline std::uint32_t narrow_four(float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if constexpr (Narrow == to_e4m3 || Narrow == to_e5m2) {
    std::uint16_t low, high;
    if constexpr (Narrow == to_e4m3) {
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
    } else {
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
    }
    return low | std::uint32_t(high) << 16;
  } else
#endif
  {
    return Narrow(a) | std::uint32_t(Narrow(b)) << 8 | std::uint32_t(Narrow(c)) << 16 | std::uint32_t(Narrow(d)) << 24;
  }
}

/// fp16 by hardware, of what is no NaN's payload.
struct hardware_halves {
  __device__ static std::uint16_t narrow(float x) {
#if defined(__CUDA_ARCH__)
    std::uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
#else
    return to_fp16(x);
#endif
  }
  __device__ static float widen(std::uint16_t h) {
#if defined(__CUDA_ARCH__)
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
#else
    return from_fp16(h);
#endif
  }
};
/// 1 / scale, of a scale in fp16, as `divide` has it.
__device__ inline float inverse_of(std::uint16_t scale) {
#if defined(__CUDA_ARCH__)
  return __frcp_rn(hardware_halves::widen(scale));
#else
  return 1.0f / from_fp16(scale);
#endif
}

/// A param of 16 bits.
__device__ inline void store_half(unsigned char* to, std::uint16_t x) {
  if (reinterpret_cast<std::uintptr_t>(to) % 2 == 0) {
    *reinterpret_cast<std::uint16_t*>(to) = x;
  } else {
    to[0] = static_cast<unsigned char>(x), to[1] = static_cast<unsigned char>(x >> 8);
  }
}

}  // namespace kvilt::inline KVILT_ABI::detail
