#pragma once

#include <kvilt/core/config.hpp>

namespace kvilt::inline KVILT_ABI {

/// Which vector instructions the host backend uses. One program gives the same bits for one set on every machine that has
/// it (but for the log-sum-exp's last bit, which is the C library's logarithm's); sets differ in the last bits.
enum class instruction_set : unsigned char {
  portable,  // what the program is compiled for
  neon,      // which every AArch64 processor has
  avx2,      // AVX2, FMA, F16C
  avx512     // AVX-512 F, BW, DQ, VL, VNNI
};

constexpr const char* name_of(instruction_set s) {
  switch (s) {
    case instruction_set::neon:
      return "NEON";
    case instruction_set::avx2:
      return "AVX2";
    case instruction_set::avx512:
      return "AVX-512";
    default:
      return "portable";
  }
}

/// Whether this machine can run them.
inline bool supports(instruction_set s) {
#if KVILT_X86
  if (s == instruction_set::avx2)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");  // processors with both have F16C
  if (s == instruction_set::avx512)
    return supports(instruction_set::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
#endif
  return s == instruction_set::portable || (KVILT_AARCH64 && s == instruction_set::neon);
}

/// The widest that this machine has.
inline instruction_set best_instructions() {
  constexpr instruction_set from_the_widest[] = {instruction_set::avx512, instruction_set::avx2, instruction_set::neon};
  for (const instruction_set s : from_the_widest)
    if (supports(s)) return s;
  return instruction_set::portable;
}

}  // namespace kvilt::inline KVILT_ABI
