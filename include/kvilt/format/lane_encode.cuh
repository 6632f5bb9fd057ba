#pragma once

#include <kvilt/format/floating.hpp>
#include <kvilt/format/fp8.hpp>
#include <kvilt/format/integer.hpp>
#include <kvilt/format/rotate.hpp>
#include <kvilt/format/static_scale.hpp>
#include <kvilt/gpu/lanes.cuh>

/// \file
/// Records that the lanes of a group write together: the bytes that a format's own `encode` writes. Said of the template
/// in which `encode` is declared, so that a format derived from ours with another `encode` keeps its own.

namespace kvilt::inline KVILT_ABI::detail {

template <class Declaring>
struct lane_codes {
  static constexpr bool known = false;
};

template <class Declaring>
Declaring declares(void (Declaring::*)(const float*, row_ref) const);
template <class F>
struct encoder_trait {
  using type = void;
};
template <class F>
requires requires {
  declares(&F::encode);
}
struct encoder_trait<F> {
  using type = decltype(declares(&F::encode));
};
template <class F>
using lane_encoder = lane_codes<typename encoder_trait<F>::type>;

/// Do lanes write the format's records, of rows that they hold?
template <class F>
inline constexpr bool lanes_encode = F::rows == 1 && lane_encoder<F>::known;
template <class Rotation>
inline constexpr bool lanes_rotate = std::is_same_v<Rotation, no_rotation> || std::is_same_v<Rotation, hadamard>;

/// `hadamard::forward` of the row that a group holds: sums of the same pairs in the same order.
template <class Rotation>
__device__ void rotate_lanes(float (&x)[lane_numbers], const lane_group& g, int dim) {
  if constexpr (std::is_same_v<Rotation, hadamard>) {
    const int block = power_of_two_divisor(dim);
#pragma unroll
    for (int half = 1; half < lane_numbers; half *= 2)
      if (2 * half <= block)
#pragma unroll
        for (int i = 0; i < lane_numbers; ++i)
          if (!(i & half)) {
            const float a = x[i], b = x[i + half];
            x[i] = a + b;
            x[i + half] = a - b;
          }
    for (int bit = 1; 2 * bit * lane_numbers <= block; bit *= 2)
#pragma unroll
      for (int i = 0; i < lane_numbers; ++i) {
        const float other = g.other(x[i], bit);
        x[i] = g.lane & bit ? other - x[i] : x[i] + other;
      }
    // NOTE: not to be contracted with what comes next.
    const float norm = hadamard::norm_of(dim);
#pragma unroll
    for (int i = 0; i < lane_numbers; ++i) x[i] = __fmul_rn(x[i], norm);
  }
}

/// Lanes that share a scale; 0: not so many as shuffles need.
template <int Group>
KVILT_HD constexpr int lanes_of_scale(int all) {
  constexpr int lanes = Group / lane_numbers;
  return Group == whole_row ? all : lanes <= 32 && (lanes & (lanes - 1)) == 0 ? lanes : 0;
}

/// The largest magnitude of those `lanes` lanes' numbers; NaN where one of them is.
__device__ inline float largest_of_lanes(const float (&x)[lane_numbers], const lane_group& g, int lanes) {
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < lane_numbers; ++i) largest = max(largest, magnitude_bits(x[i]));
  for (int bit = 1; bit < lanes; bit *= 2) largest = max(largest, g.other(largest, bit));
  return float_of(largest);
}

template <int D>
struct lane_codes<fp32<D>> {
  static constexpr bool known = true;
  __device__ static void put(const float (&x)[lane_numbers], const lane_group& g, int live, row_ref to) {
    std::uint32_t word[lane_numbers];
#pragma unroll
    for (int i = 0; i < lane_numbers; ++i) word[i] = kvilt::bits_of(x[i]);
    store_words(to.codes + 4 * lane_numbers * g.lane, word, live);
  }
};

template <int D, std::uint16_t (*Narrow)(float), float (*Widen)(std::uint16_t)>
struct lane_codes<float_16<D, Narrow, Widen>> {
  static constexpr bool known = true;
  __device__ static void put(const float (&x)[lane_numbers], const lane_group& g, int live, row_ref to) {
    std::uint32_t word[lane_numbers / 2];
#pragma unroll
    for (int i = 0; i < lane_numbers / 2; ++i) word[i] = narrow_two<Narrow>(x[2 * i], x[2 * i + 1]);
    store_words(to.codes + 2 * lane_numbers * g.lane, word, live);
  }
};

/// The same for a signed byte with 128 added: the low bytes of what `nearest_code` adds up to, put together first.
template <>
__device__ inline std::uint32_t narrow_four<to_centred_byte>(float a, float b, float c, float d) {
  const unsigned low = __byte_perm(unsigned(nearest_code(a, -127, 127)), unsigned(nearest_code(b, -127, 127)), 0x0040);
  const unsigned high = __byte_perm(unsigned(nearest_code(c, -127, 127)), unsigned(nearest_code(d, -127, 127)), 0x0040);
  return __byte_perm(low, high, 0x5410) ^ 0x80808080u;
}

/// Codes of a byte: Narrow(x * inverse).
template <std::uint8_t (*Narrow)(float)>
__device__ void put_bytes(const float (&x)[lane_numbers], float inverse, const lane_group& g, int live, row_ref to) {
  std::uint32_t word[lane_numbers / 4];
#pragma unroll
  for (int i = 0; i < lane_numbers / 4; ++i)
    word[i] = narrow_four<Narrow>(__fmul_rn(x[4 * i], inverse), __fmul_rn(x[4 * i + 1], inverse),
                                  __fmul_rn(x[4 * i + 2], inverse), __fmul_rn(x[4 * i + 3], inverse));
  store_words(to.codes + lane_numbers * g.lane, word, live);
}

/// One byte a number, the largest magnitude of those under one scale at `Largest`.
template <int Group, std::uint8_t (*Narrow)(float)>
struct symmetric_lane_codes {
  static constexpr bool known = lanes_of_scale<Group>(1) > 0;
  __device__ static void put_scaled(const float (&x)[lane_numbers], float largest_code, const lane_group& g, int live,
                                    row_ref to) {
    const int lanes = lanes_of_scale<Group>(g.size);
    const std::uint16_t scale = stored_scale<hardware_halves>(largest_of_lanes(x, g, lanes), largest_code);
    if ((g.lane & (lanes - 1)) == 0 && live > 0) store_half(to.params + 2 * (g.lane / lanes), scale);
    put_bytes<Narrow>(x, inverse_of(scale), g, live, to);
  }
};

template <int D, int Group, std::uint8_t (*Narrow)(float), float (*Widen)(std::uint8_t), int Largest>
struct lane_codes<float_8<D, Group, Narrow, Widen, Largest>> : symmetric_lane_codes<Group, Narrow> {
  __device__ static void put(const float (&x)[lane_numbers], const lane_group& g, int live, row_ref to) {
    symmetric_lane_codes<Group, Narrow>::put_scaled(x, float(Largest), g, live, to);
  }
};

template <int D, int Group>
struct lane_codes<q8<D, Group>> : symmetric_lane_codes<Group, to_centred_byte> {
  __device__ static void put(const float (&x)[lane_numbers], const lane_group& g, int live, row_ref to) {
    symmetric_lane_codes<Group, to_centred_byte>::put_scaled(x, 127.0f, g, live, to);
  }
};

template <int D, std::uint8_t (*Narrow)(float), float (*Widen)(std::uint8_t)>
struct lane_codes<static_scaled<D, Narrow, Widen>> {
  static constexpr bool known = true;
  __device__ static void put(const float (&x)[lane_numbers], const lane_group& g, int live, row_ref to) {
    put_bytes<Narrow>(x, divide(1.0f, read<float>(to.params)), g, live, to);
  }
};

template <int D, int Group>
struct lane_codes<q4<D, Group>> {
  static constexpr bool known = lanes_of_scale<Group>(1) > 0;
  __device__ static void put(const float (&x)[lane_numbers], const lane_group& g, int live, row_ref to) {
    const int lanes = lanes_of_scale<Group>(g.size);
    number_range all;
#pragma unroll
    for (int i = 0; i < lane_numbers; ++i)
      if (i < live) all.add(x[i]);
    for (int bit = 1; bit < lanes; bit *= 2)
      all.add(number_range{g.other(all.low, bit), g.other(all.high, bit), bool(g.other(int(all.nan), bit))});
    const affine<15> of(all);
    if ((g.lane & (lanes - 1)) == 0 && live > 0) {
      store_half(to.params + 4 * (g.lane / lanes), of.scale);
      store_half(to.params + 4 * (g.lane / lanes) + 2, of.zero);
    }
    std::uint32_t word[2] = {};
#pragma unroll
    for (int i = 0; i < lane_numbers; ++i) word[i / 8] |= of.code(x[i]) << 4 * (i % 8);
    store_words(to.codes + lane_numbers / 2 * g.lane, word, live);
  }
};

}  // namespace kvilt::inline KVILT_ABI::detail
