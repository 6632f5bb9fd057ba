#pragma once

#include <kvilt/core/version.hpp>

/// \file
/// The only place that asks which compiler is at work.

#if defined(__CUDACC__)
/// Marks what runs on the host and on the device. NOTE: such code calls only the core language, builtins and other
/// KVILT_HD functions: a host-only constexpr function in it compiles to garbage with no error.
#define KVILT_HD __host__ __device__
/// Before a KVILT_HD function that calls what its caller hands in, a lambda of either side.
#define KVILT_EITHER_SIDE _Pragma("nv_exec_check_disable")
#else
#define KVILT_HD
#define KVILT_EITHER_SIDE
#endif

#if defined(__GNUC__) || defined(__clang__)
/// A type that may stand for another one's bits.
#define KVILT_MAY_ALIAS __attribute__((__may_alias__))
/// Values computed before this point are in memory: no multiply-add is contracted across it.
#define KVILT_FENCE() __asm__ volatile("" ::: "memory")
#define KVILT_ALWAYS_INLINE inline __attribute__((__always_inline__))
/// A function for what seldom happens: small where it is called.
#define KVILT_COLD __attribute__((__cold__, __noinline__))
#else
#define KVILT_ALWAYS_INLINE inline
#define KVILT_COLD
#define KVILT_MAY_ALIAS
#define KVILT_FENCE()
#endif

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
/// Functions may be compiled for instructions that the program as a whole does without.
#define KVILT_X86 1
#else
#define KVILT_X86 0
#endif
#if (defined(__GNUC__) || defined(__clang__)) && defined(__aarch64__)
#define KVILT_AARCH64 1
#else
#define KVILT_AARCH64 0
#endif

#if defined(__CUDACC__)
#define KVILT_UNROLL
#elif defined(__clang__)
#define KVILT_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
/// Before a loop of few steps, known when compiled, whose arrays are to live in registers.
#define KVILT_UNROLL _Pragma("GCC unroll 32")
#else
#define KVILT_UNROLL
#endif

#if defined(KVILT_CHECKED) && KVILT_CHECKED
#define KVILT_IS_CHECKED 1
#else
/// In checked mode (KVILT_CHECKED=1) every page, length and stride that a step reaches is validated.
#define KVILT_IS_CHECKED 0
#endif

#if KVILT_IS_CHECKED
#define KVILT_MODE _checked
#else
#define KVILT_MODE
#endif
#if defined(__cpp_exceptions)
#define KVILT_ERRORS
#else
#define KVILT_ERRORS _trap
#endif
#if defined(KVILT_RAISE)
#define KVILT_HEARD_BY _heard_by_
#define KVILT_HANDLER KVILT_RAISE
#else
#define KVILT_HEARD_BY
#define KVILT_HANDLER
#endif
#if defined(__AVX512F__)
#define KVILT_FLAGS _avx512
#elif defined(__AVX2__)
#define KVILT_FLAGS _avx2
#elif defined(__FMA__)
#define KVILT_FLAGS _fma
#else
#define KVILT_FLAGS
#endif
#if defined(KVILT_KERNELS_ELSEWHERE) || defined(KVILT_KERNELS_HERE)
#define KVILT_KERNELS _kernels_once
#else
#define KVILT_KERNELS
#endif
#define KVILT_JOIN_(a, b, c, d, e, f, g, h) v##a##_##b##c##d##e##f##g##h
#define KVILT_JOIN(a, b, c, d, e, f, g, h) KVILT_JOIN_(a, b, c, d, e, f, g, h)
/// The inline namespace: two versions, the two modes, two ways of errors, code for two kinds of processor, and kernels
/// compiled once or everywhere do not meet in one program.
#define KVILT_ABI                                                                                               \
  KVILT_JOIN(KVILT_VERSION_MAJOR, KVILT_VERSION_MINOR, KVILT_MODE, KVILT_ERRORS, KVILT_HEARD_BY, KVILT_HANDLER, \
             KVILT_FLAGS, KVILT_KERNELS)
