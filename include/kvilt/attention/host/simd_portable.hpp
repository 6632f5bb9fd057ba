#pragma once

#include <kvilt/attention/host/tasks.hpp>

/// \file
/// The host's kernels on vectors of 8 floats, in what the program is compiled for. Loops of 8
/// steps: compilers make vectors of them.
namespace kvilt::inline KVILT_ABI::detail::portable {

inline constexpr int lanes = 8;
struct f32 {
  float lane[lanes];
};

/// `f` of each lane.
#define KVILT_EACH_LANE(expression)                              \
  f32 result;                                                    \
  KVILT_UNROLL                                                   \
  for (int i = 0; i < lanes; ++i) result.lane[i] = (expression); \
  return result

inline f32 splat(float x) {
  KVILT_EACH_LANE(x);
}
inline f32 zero() {
  return splat(0);
}
inline f32 load(const float* p) {
  f32 x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}
inline void store(float* p, f32 x) {
  __builtin_memcpy(p, &x, sizeof(x));
}
inline f32 add(f32 a, f32 b) {
  KVILT_EACH_LANE(a.lane[i] + b.lane[i]);
}
inline f32 subtract(f32 a, f32 b) {
  KVILT_EACH_LANE(a.lane[i] - b.lane[i]);
}
inline f32 multiply(f32 a, f32 b) {
  KVILT_EACH_LANE(a.lane[i] * b.lane[i]);
}
/// a b + c
inline f32 multiply_add(f32 a, f32 b, f32 c) {
#if defined(__FMA__) || KVILT_AARCH64
  KVILT_EACH_LANE(__builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]));
#else
  KVILT_EACH_LANE(a.lane[i] * b.lane[i] + c.lane[i]);
#endif
}
/// The larger; `b` where `a` is NaN.
inline f32 larger(f32 a, f32 b) {
  KVILT_EACH_LANE(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]);
}
inline bool any_nan(f32 x) {
  bool nan = false;
  for (const float lane : x.lane) nan |= is_nan(lane);
  return nan;
}
/// `x` where `condition` is not 0, 0 elsewhere: whatever `x` holds there.
inline f32 where_not_zero(f32 condition, f32 x) {
  KVILT_EACH_LANE(condition.lane[i] != 0 ? x.lane[i] : 0.0f);
}
inline f32 nearest_whole(f32 x) {
  KVILT_EACH_LANE(float(int((x.lane[i] > -127.0f ? x.lane[i] : -127.0f) - 0.5f)));  // of what is not positive
}
/// 2^n e for n = `exponent`, a whole number from -126 to 0; 0 where `x` is below -87.
inline f32 scale_by_power(f32 e, f32 exponent, f32 x) {
  KVILT_EACH_LANE(x.lane[i] < -87.0f ? 0.0f : e.lane[i] * float_of(std::uint32_t(int(exponent.lane[i]) + 127) << 23));
}

/// Numbers [i, i + 8) of a row: rows are whole vectors.
inline f32 read_fp32(const unsigned char* row, int i, int) {
  f32 x;
  __builtin_memcpy(&x, row + 4 * i, sizeof(x));
  return x;
}
inline f32 read_fp16(const unsigned char* row, int i, int) {
  std::uint16_t code[lanes];
  __builtin_memcpy(code, row + 2 * i, sizeof(code));
  f32 result;
  for (int j = 0; j < lanes; ++j) result.lane[j] = from_fp16(code[j]);
  return result;
}
inline f32 read_bf16(const unsigned char* row, int i, int) {
  std::uint16_t code[lanes];
  __builtin_memcpy(code, row + 2 * i, sizeof(code));
  f32 result;
  for (int j = 0; j < lanes; ++j) result.lane[j] = from_bf16(code[j]);
  return result;
}
inline f32 read_e4m3(const unsigned char* row, int i, int) {
  f32 result;
  for (int j = 0; j < lanes; ++j) result.lane[j] = from_e4m3(row[i + j]);
  return result;
}
inline f32 read_e5m2(const unsigned char* row, int i, int) {
  f32 result;
  for (int j = 0; j < lanes; ++j) result.lane[j] = from_e5m2(row[i + j]);
  return result;
}
inline f32 read_u8(const unsigned char* row, int i, int) {
  f32 result;
  for (int j = 0; j < lanes; ++j) result.lane[j] = float(row[i + j]);
  return result;
}
inline f32 read_u4(const unsigned char* row, int i, int) {
  std::uint32_t word;
  __builtin_memcpy(&word, row + i / 2, sizeof(word));
  f32 result;
  for (int j = 0; j < lanes; ++j) result.lane[j] = float(int(word >> 4 * j & 15));
  return result;
}

template <int Distance>
f32 swap_lanes(f32 x) {
  KVILT_EACH_LANE(x.lane[i ^ Distance]);
}
inline float first_lane(f32 x) {
  return x.lane[0];
}

/// Lane i of the result is the sum of part[i]'s lanes, each added in the same order.
inline f32 sum_each(const f32 (&part)[lanes]) {
  f32 result;
  for (int i = 0; i < lanes; ++i) {
    const float* x = part[i].lane;
    result.lane[i] = ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
  }
  return result;
}

#undef KVILT_EACH_LANE

#define KVILT_TARGET
#include <kvilt/attention/host/float_kernels.inl>
#undef KVILT_TARGET

}  // namespace kvilt::inline KVILT_ABI::detail::portable
