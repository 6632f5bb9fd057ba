#pragma once

#include <kvilt/attention/host/integer_avx512.hpp>
#include <kvilt/attention/host/simd_avx2.hpp>
#include <kvilt/attention/host/simd_portable.hpp>

namespace kvilt::inline KVILT_ABI::detail {

/// The kernels of a set of instructions that this machine supports.
inline const host_kernels& kernels_for(instruction_set s) {
#if KVILT_X86
  if (s == instruction_set::avx512) return avx512::kernels;
  if (s == instruction_set::avx2) return avx2::float_kernels;
#endif
  (void)s;
  return portable::float_kernels;
}

}  // namespace kvilt::inline KVILT_ABI::detail
