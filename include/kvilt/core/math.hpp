#pragma once

#include <kvilt/core/types.hpp>

namespace kvilt::inline KVILT_ABI {

KVILT_HD constexpr idx ceil_div(idx a, idx b) {
  return (a + b - 1) / b;
}
KVILT_HD constexpr idx round_up(idx a, idx b) {
  return ceil_div(a, b) * b;
}
KVILT_HD constexpr idx smaller(idx a, idx b) {
  return b < a ? b : a;
}
KVILT_HD constexpr idx larger(idx a, idx b) {
  return a < b ? b : a;
}

/// a % b of numbers that are not negative. NOTE: on the device below 2^31, as positions and slots are there: a division of
/// 64 bits is a call.
KVILT_HD constexpr idx remainder(idx a, idx b) {
#if defined(__CUDA_ARCH__)
  return idx(std::uint32_t(a) % std::uint32_t(b));
#else
  return a % b;
#endif
}

/// The largest power of two that divides `n` (n > 0).
KVILT_HD constexpr int power_of_two_divisor(int n) {
  return n & -n;
}

/// A divisor known at run time, for dividends below 2^32: one multiply instead of a division
/// (D. Lemire, O. Kaser, N. Kurz, "Faster remainder by direct computation", 2019).
class fast_divisor {
 public:
  constexpr fast_divisor() = default;
  KVILT_HD constexpr explicit fast_divisor(int d)
      : d_(d), magic_(d > 1 ? ~std::uint64_t(0) / std::uint64_t(d) + 1 : 0) {}

  KVILT_HD constexpr int value() const { return d_; }
  KVILT_HD constexpr idx quotient(idx n) const { return d_ == 1 ? n : idx(high(magic_, std::uint64_t(n))); }

 private:
  // NOTE: the upper half of a 64 x 32-bit product by parts: constexpr, and the compilers make one multiply of it.
  KVILT_HD static constexpr std::uint64_t high(std::uint64_t a, std::uint64_t b) {
    const std::uint64_t low = (a & 0xffffffffu) * b;
    return ((a >> 32) * b + (low >> 32)) >> 32;
  }

  int d_ = 0;
  std::uint64_t magic_ = 0;
};

/// The same of a divisor that the type says.
template <int D>
struct fixed_divisor {
  KVILT_HD static constexpr int value() { return D; }
  KVILT_HD static constexpr idx quotient(idx n) { return n / D; }
};

}  // namespace kvilt::inline KVILT_ABI
