#pragma once

#include <kvilt/core/types.hpp>

/// \file
/// Single PTX instructions that CUDA C++ has no name for. All of them exist from sm_80 on.

namespace kvilt::inline KVILT_ABI::detail::ptx {

using u32 = std::uint32_t;

__device__ inline u32 shared_address(const void* p) {
  return u32(__cvta_generic_to_shared(p));
}

/// For data that is read once: the second-level cache gives it up first. What `createpolicy.fractional` makes of that.
inline constexpr std::uint64_t read_once = 0x12f0000000000000;
/// 16 bytes to shared memory, of which the first `bytes` are read and the rest are zero. Nothing is read where it is 0.
__device__ inline void copy_async(u32 to, const void* from, u32 bytes) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(bytes),
               "l"(read_once)
               : "memory");
}
/// 16 bytes to shared memory.
__device__ inline void copy_async(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(read_once)
               : "memory");
}
/// The same, or zeros, and nothing is read, where `there` is false.
__device__ inline void copy_async(u32 to, const void* from, bool there) {
  asm volatile(
      "{.reg .pred absent; setp.eq.u32 absent, %2, 0;\n"
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, absent, %3;}" ::"r"(to),
      "l"(from), "r"(u32(there)), "l"(read_once)
      : "memory");
}
/// 16 bytes of data that other blocks read too.
__device__ inline void copy_async_shared(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/// The same, of which the first `bytes` are read and the rest are zero.
__device__ inline void copy_async_shared(u32 to, const void* from, u32 bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
/// 4 bytes, or zeros where `there` is false.
__device__ inline void copy_word_async(u32 to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4u : 0u) : "memory");
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// All groups but the last `N` have arrived.
template <int N>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
/// All copies of this thread have.
__device__ inline void wait_all_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
__device__ inline uint4 load_shared_16(u32 from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ inline void load_shared_8(u32 (&v)[2], u32 from) {
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(from) : "memory");
}
__device__ inline void store_shared_8(u32 to, const u32 (&v)[2]) {
  asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(to), "r"(v[0]), "r"(v[1]) : "memory");
}
__device__ inline u32 load_shared_4(u32 from) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
__device__ inline void store_shared_4(u32 to, u32 v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ inline void store_shared_16(u32 to, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

/// Adds to a number in device memory, and waits for nothing. Subnormal numbers are 0.
__device__ inline void add_to_global(float* to, float x) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

/// To the second-level cache.
__device__ inline void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}

/// Four 8 x 8 matrices of 16-bit numbers, as they lie; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void load_matrices(u32 (&m)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}
/// The same, transposed.
__device__ inline void load_transposed(u32 (&m)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}
/// An 8 x 8 matrix of 16-bit numbers that a warp holds, transposed.
__device__ inline u32 transpose(u32 m) {
  u32 t;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(m));
  return t;
}

/// Which 16-bit numbers a product is of.
enum class numbers : unsigned char { fp16, bf16 };

/// d [16][8] += a [16][16] b [16][8], sums in fp32.
template <numbers N>
__device__ inline void multiply_add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (N == numbers::fp16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two numbers rounded to 16 bits, the first in the low half.
template <numbers N>
__device__ inline u32 pack(float low, float high) {
  u32 d;
  if constexpr (N == numbers::fp16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
/// The fp16 number in the low half.
__device__ inline float from_half(u32 x) {
  float d;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(d) : "r"(x));
  return d;
}
/// What two numbers have lost when they were rounded to `packed`, rounded likewise.
template <numbers N>
__device__ inline u32 pack_rest(float low, float high, u32 packed) {
  if constexpr (N == numbers::fp16)
    return pack<N>(low - from_half(packed), high - from_half(packed >> 16));
  else
    return pack<N>(low - __uint_as_float(packed << 16), high - __uint_as_float(packed & 0xffff0000u));
}

/// 2^x, subnormal results flushed to 0; 0 of -infinity.
__device__ inline float exp2(float x) {
  float d;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}
__device__ inline float log2(float x) {
  float d;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}
__device__ inline float inverse(float x) {
  float d;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}

/// (a & b) | c, at once: the compiler makes two instructions of it where b and c are known.
__device__ inline u32 and_or(u32 a, u32 b, u32 c) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
/// Bytes of two words picked by the nibbles of `select`.
__device__ inline u32 permute(u32 a, u32 b, u32 select) {
  return __byte_perm(a, b, select);
}
__device__ inline u32 subtract_halves(u32 a, u32 b) {
  u32 d;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
/// a * b + c of pairs of fp16.
__device__ inline u32 multiply_add_halves(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

}  // namespace kvilt::inline KVILT_ABI::detail::ptx
