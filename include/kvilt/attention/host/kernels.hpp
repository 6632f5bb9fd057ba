#pragma once

#if defined(KVILT_KERNELS_ELSEWHERE)
#include <kvilt/attention/host/tasks.hpp>
#else
#include <kvilt/attention/host/integer_avx512.hpp>
#include <kvilt/attention/host/simd_avx2.hpp>
#include <kvilt/attention/host/simd_neon.hpp>
#include <kvilt/attention/host/simd_portable.hpp>
#endif

namespace kvilt::inline KVILT_ABI::detail {

/// The kernels of a set of instructions that this machine supports.
///
/// They depend on no type of the user's, and take seconds to compile. A program of many sources compiles them once:
/// with -DKVILT_KERNELS_ELSEWHERE everywhere, and one source, compiled with the same flags, that undefines it, defines
/// KVILT_KERNELS_HERE before its first header of ours, and includes this one.
#if defined(KVILT_KERNELS_ELSEWHERE) || defined(KVILT_KERNELS_HERE)
const host_kernels& compiled_kernels_for(instruction_set s);
inline const host_kernels& kernels_for(instruction_set s) {
  return compiled_kernels_for(s);
}
#endif
#if !defined(KVILT_KERNELS_ELSEWHERE)
#if defined(KVILT_KERNELS_HERE)
const host_kernels& compiled_kernels_for(instruction_set s) {
#else
inline const host_kernels& kernels_for(instruction_set s) {
#endif
#if KVILT_X86
  if (s == instruction_set::avx512) return avx512::kernels;
  if (s == instruction_set::avx2) return avx2::float_kernels;
#elif KVILT_AARCH64
  if (s == instruction_set::neon) return neon::float_kernels;
#endif
  (void)s;
  return portable::float_kernels;
}
#endif

}  // namespace kvilt::inline KVILT_ABI::detail

#undef KVILT_AVX2
#undef KVILT_AVX512
