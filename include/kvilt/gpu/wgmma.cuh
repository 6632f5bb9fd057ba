#pragma once

#include <kvilt/gpu/ptx.cuh>

/// \file
/// What only sm_90a has: products of whole warpgroups (four warps, the first of them a multiple of four), and registers
/// that go from one warpgroup to another; and what belongs to them. Elsewhere all of it exists and does nothing: no kernel
/// comes to it there.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define KVILT_WARPGROUPS 1
#else
#define KVILT_WARPGROUPS 0
#endif

namespace kvilt::inline KVILT_ABI::detail::ptx {

using u64 = std::uint64_t;

#if KVILT_WARPGROUPS
#define KVILT_SM90A(...) asm volatile(__VA_ARGS__)
#else
#define KVILT_SM90A(...) static_cast<void>(0)
#endif

/// This warpgroup's threads have `Count` registers each from now on; all its warps call it.
template <int Count>
__device__ inline void take_registers() {
  KVILT_SM90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
__device__ inline void give_registers() {
  KVILT_SM90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

/// What was written to shared memory before this thread came here, by others before a barrier, is there for its products.
/// NOTE: where those who write do it, they wait for all their copies that are still on their way.
__device__ inline void show_to_products() {
  KVILT_SM90A("fence.proxy.async.shared::cta;" ::: "memory");
}
/// What registers hold is there for the products that follow.
__device__ inline void begin_products() {
  KVILT_SM90A("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void commit_products() {
  KVILT_SM90A("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// All groups of products but the last `N` are done.
template <int N>
__device__ inline void wait_products() {
  KVILT_SM90A("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/// NOTE: after a wait, before products' results are read: the compiler does not know that they come late.
template <int N>
__device__ inline void settle(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// A factor in shared memory, in rows of 128 bytes, whose chunks of 16 change places by the row's number modulo 8 (PTX: 128B
/// swizzle); eight rows are 1,024 bytes. `across`: bytes from 64 numbers of a row to the next 64, where the factor goes that
/// way. Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout".
__device__ constexpr u64 factor(u32 at, u32 across = 16) {
  return u64(at >> 4 & 0x3fff) | u64(across >> 4 & 0x3fff) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}

// Numbers %0 to %63 of an asm statement, and what they are: d[0] to d[63].
#define KVILT_NAMES_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define KVILT_NAMES_16 KVILT_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define KVILT_NAMES_32 KVILT_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define KVILT_NAMES_64                                                                                             \
  KVILT_NAMES_32                                                                                                   \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%" \
  "59,%60,%61,%62,%63"
#define KVILT_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KVILT_SUMS_8(i) KVILT_SUMS_4(i), KVILT_SUMS_4(i + 4)
#define KVILT_SUMS_16(i) KVILT_SUMS_8(i), KVILT_SUMS_8(i + 8)
#define KVILT_SUMS_32(i) KVILT_SUMS_16(i), KVILT_SUMS_16(i + 16)
#define KVILT_SUMS_64(i) KVILT_SUMS_32(i), KVILT_SUMS_32(i + 32)
// Products of `columns` columns, of which a thread has `sums` numbers; then the numbers of the operands after these.
#define KVILT_PRODUCT(type, columns, sums) \
  "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" KVILT_NAMES_##sums "}, "
#define KVILT_SHARED(type, columns, sums, first, second, third)                                          \
  KVILT_SM90A("{.reg .pred add; setp.ne.b32 add, %" #third                                               \
              ", 0;\n" KVILT_PRODUCT(type, columns, sums) "%" #first ", %" #second ", add, 1, 1, 0, 0;}" \
              : KVILT_SUMS_##sums(0)                                                                     \
              : "l"(a), "l"(b), "r"(u32(add)))
#define KVILT_REGISTERS(type, columns, sums, first, second, third, fourth, fifth)                                \
  KVILT_SM90A(KVILT_PRODUCT(type, columns, sums) "{%" #first ",%" #second ",%" #third ",%" #fourth "}, %" #fifth \
                                                 ", 1, 1, 1, 1;"                                                 \
              : KVILT_SUMS_##sums(0)                                                                             \
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define KVILT_SHARED_16(type) KVILT_SHARED(type, 16, 8, 8, 9, 10)
#define KVILT_SHARED_32(type) KVILT_SHARED(type, 32, 16, 16, 17, 18)
#define KVILT_SHARED_64(type) KVILT_SHARED(type, 64, 32, 32, 33, 34)
#define KVILT_SHARED_128(type) KVILT_SHARED(type, 128, 64, 64, 65, 66)
#define KVILT_REGISTERS_16(type) KVILT_REGISTERS(type, 16, 8, 8, 9, 10, 11, 12)
#define KVILT_REGISTERS_32(type) KVILT_REGISTERS(type, 32, 16, 16, 17, 18, 19, 20)
#define KVILT_REGISTERS_64(type) KVILT_REGISTERS(type, 64, 32, 32, 33, 34, 35, 36)
#define KVILT_REGISTERS_128(type) KVILT_REGISTERS(type, 128, 64, 64, 65, 66, 67, 68)
#define KVILT_FOR_COLUMNS(product, type)     \
  if constexpr (N == 16) product##_16(type); \
  if constexpr (N == 32) product##_32(type); \
  if constexpr (N == 64) product##_64(type); \
  if constexpr (N == 128) product##_128(type)

/// d [64][N] = a [64][16] b [N][16] transposed, + d where `add` is true; rows 16 x warp + g and + 8 and columns 8 n + 2 t
/// and + 1 of d are d[4 n] to d[4 n + 3], g being lane / 4 and t lane % 4. Both factors in shared memory, sums in fp32.
template <numbers Numbers, int N>
__device__ inline void multiply_shared(float* d, u64 a, u64 b, bool add) {
  static_assert(N == 16 || N == 32 || N == 64 || N == 128);
  if constexpr (Numbers == numbers::fp16) {
    KVILT_FOR_COLUMNS(KVILT_SHARED, "f16");
  } else {
    KVILT_FOR_COLUMNS(KVILT_SHARED, "bf16");
  }
}
/// d [64][N] += a [64][16] b [16][N]: a as `multiply_add` takes it, sixteen rows a warp; rows of b in shared memory.
template <numbers Numbers, int N>
__device__ inline void multiply_registers(float* d, const u32 (&a)[4], u64 b) {
  static_assert(N == 16 || N == 32 || N == 64 || N == 128);
  if constexpr (Numbers == numbers::fp16) {
    KVILT_FOR_COLUMNS(KVILT_REGISTERS, "f16");
  } else {
    KVILT_FOR_COLUMNS(KVILT_REGISTERS, "bf16");
  }
}

/// Barriers that threads wait at for what others do; of 8 bytes in shared memory. Phases follow each other, each of `count`
/// arrivals, and are told apart by their number modulo 2.
__device__ inline void begin_barrier(u32 barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void arrive(u32 barrier) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(barrier) : "memory");
}
/// The same when all copies that this thread has asked for are there.
__device__ inline void arrive_with_copies(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
#define KVILT_IS_OVER(wait)                          \
  KVILT_SM90A("{.reg .pred over; mbarrier." wait     \
              ".parity.shared.b64 over, [%1], %2;\n" \
              "selp.u32 %0, 1, 0, over;}"            \
              : "=r"(over)                           \
              : "r"(barrier), "r"(phase & 1)         \
              : "memory")
/// Is the phase over?
__device__ inline bool is_over([[maybe_unused]] u32 barrier, [[maybe_unused]] u32 phase) {
  u32 over = 1;
  KVILT_IS_OVER("test_wait");
  return over != 0;
}
/// The same; may take a while to say no.
__device__ inline bool is_soon_over([[maybe_unused]] u32 barrier, [[maybe_unused]] u32 phase) {
  u32 over = 1;
  KVILT_IS_OVER("try_wait");
  return over != 0;
}
__device__ inline void wait_until_over(u32 barrier, u32 phase) {
  while (!is_soon_over(barrier, phase)) {
  }
}

/// Arrives, and has the phase wait for so many bytes more, which `copy_box` brings.
__device__ inline void arrive_expecting([[maybe_unused]] u32 barrier, [[maybe_unused]] u32 bytes) {
  KVILT_SM90A("{.reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;}" ::"r"(barrier), "r"(bytes)
              : "memory");
}
/// A box of a tensor of four dimensions to shared memory, as the tensor's map has it, which is the kernel's parameter.
__device__ inline void copy_box([[maybe_unused]] u32 to, [[maybe_unused]] const void* map,
                                [[maybe_unused]] const int (&at)[4], [[maybe_unused]] u32 barrier) {
  KVILT_SM90A(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(to),
      "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(barrier)
      : "memory");
}

/// Barriers of whole warps, `threads` threads in all: `sync` waits for the others, `pass` does not.
__device__ inline void sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void pass(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#undef KVILT_SM90A
#undef KVILT_NAMES_8
#undef KVILT_NAMES_16
#undef KVILT_NAMES_32
#undef KVILT_NAMES_64
#undef KVILT_SUMS_4
#undef KVILT_SUMS_8
#undef KVILT_SUMS_16
#undef KVILT_SUMS_32
#undef KVILT_SUMS_64
#undef KVILT_PRODUCT
#undef KVILT_SHARED
#undef KVILT_REGISTERS
#undef KVILT_SHARED_16
#undef KVILT_SHARED_32
#undef KVILT_SHARED_64
#undef KVILT_SHARED_128
#undef KVILT_REGISTERS_16
#undef KVILT_REGISTERS_32
#undef KVILT_REGISTERS_64
#undef KVILT_REGISTERS_128
#undef KVILT_FOR_COLUMNS
#undef KVILT_IS_OVER

}  // namespace kvilt::inline KVILT_ABI::detail::ptx
