#pragma once

#include <kvilt/core/math.hpp>
#include <kvilt/core/name.hpp>
#include <kvilt/format/format.hpp>

namespace kvilt::inline KVILT_ABI {

/// The orthonormal Walsh-Hadamard transform of a row, block-diagonal where `dim` is no power of two: blocks of the
/// largest power of two that divides it. Its own inverse. Spreads an outlier of K over the row, which is worth about
/// one bit of a narrow format (S. Ashkboos et al., "QuaRot", 2024).
struct hadamard {
  KVILT_HD static void forward(float* x, int dim) {
    const int block = power_of_two_divisor(dim);
    for (int half = 1; half < block; half *= 2)
      for (int first = 0; first < dim; first += 2 * half)
        for (int i = first; i < first + half; ++i) {
          const float a = x[i], b = x[i + half];
          x[i] = a + b;
          x[i + half] = a - b;
        }
    const float norm = norm_of(dim);
    for (int i = 0; i < dim; ++i) x[i] *= norm;
  }
  KVILT_HD static void inverse(float* x, int dim) { forward(x, dim); }

  /// What a row of `dim` sums is multiplied by at the end.
  KVILT_HD static constexpr float norm_of(int dim) { return inverse_root(power_of_two_divisor(dim)); }

 private:
  KVILT_HD static constexpr float inverse_root(int block) {
    float norm = 1;
    for (; block >= 4; block /= 4) norm *= 0.5f;
    return block == 2 ? norm * 0.70710678118654752f : norm;
  }
};

/// Format `F` of rotated rows.
template <kv_format F, class Rotation = hadamard>
struct rotated : F {
  using F::F;
  using rotation = Rotation;
  /// The format's name and the rotation's, "rot" where that has none: "q8rot".
  static constexpr const char* name() requires requires { F::name(); }
  {
    if constexpr (requires { Rotation::name(); })
      return detail::name_of_parts<detail::name_part(F::name()), detail::name_part(Rotation::name())>();
    else
      return detail::name_of_parts<detail::name_part(F::name()), "rot">();
  }

  constexpr rotated() = default;
  constexpr rotated(const F& format) : F(format) {}
  constexpr explicit rotated(int dim) requires requires { F{dim}; } : F{dim} {
  }
};

}  // namespace kvilt::inline KVILT_ABI
