#pragma once

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
/// Marks functions that launch or hold instantiations: two shared libraries never share them.
#define KVILT_HIDDEN __attribute__((visibility("hidden")))
/// Values computed before this point are in memory: no multiply-add is contracted across it.
#define KVILT_FENCE() __asm__ volatile("" ::: "memory")
#else
#define KVILT_HIDDEN
#define KVILT_FENCE()
#endif

#if defined(KVILT_CHECKED) && KVILT_CHECKED
#define KVILT_IS_CHECKED 1
#else
/// In checked mode (KVILT_CHECKED=1) tables, lengths and strides are validated at every use.
#define KVILT_IS_CHECKED 0
#endif
