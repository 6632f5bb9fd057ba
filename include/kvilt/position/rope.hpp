#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/floats.hpp>
#include <kvilt/core/types.hpp>

#include <cmath>
#include <concepts>
#include <span>
#include <vector>

namespace kvilt::inline KVILT_ABI {

namespace detail {

inline void check_magnitude(double magnitude) {
  expects(magnitude >= 0x1p-126 && magnitude <= 0x1p127, "RoPE multiplies what it turns by ", magnitude,
          "; a positive, finite number is needed");
}

}  // namespace detail

/// Which numbers of a row turn together.
enum class rope_pairs : unsigned char {
  half_split,  // (i, i + dims / 2): GPT-NeoX, Hugging Face's Llama
  interleaved  // (2i, 2i + 1): GPT-J, Meta's Llama, GGUF files of architecture llama
};

/// Rotary position embedding (J. Su et al., "RoFormer", 2021), non-owning: what `append` takes.
///
/// Frequencies are turns per token as 64-bit binary fractions, so that position x frequency modulo one turn is one
/// integer multiply, exact at any position; an fp32 angle would be wrong by 0.01 rad at 131,072 tokens.
struct rope {
  const std::uint64_t* turns = nullptr;  // [dims / 2], in units of 2^-64 turn
  int dims = 0;                          // numbers of a row that turn; the rest stay
  rope_pairs pairs = rope_pairs::half_split;
  float magnitude = 1;  // of what turns (YaRN's attention factor)
  int first = 0;        // number of a row that turns (MLA turns the last 64 of 576)

  /// A row at `position`.
  KVILT_HD void apply(float* x, idx position) const { turn(x, position, magnitude); }
  /// A row that `apply` has turned, moved on by `tokens` positions; back by a negative number.
  KVILT_HD void shift(float* x, idx tokens) const { turn(x, tokens, 1.0f); }

  /// What pair `i` turns by at `position`, for kernels that share a row out.
  KVILT_HD void sine_cosine_of(int i, idx position, float& sine, float& cosine) const {
    sine_cosine(std::uint64_t(position) * turns[i], sine, cosine);
  }
  /// The first and the second number of a pair after the turn; both come multiplied by `magnitude`.
  KVILT_HD static constexpr float first_turned(float a, float b, float sine, float cosine) {
    return a * cosine - b * sine;
  }
  KVILT_HD static constexpr float second_turned(float a, float b, float sine, float cosine) {
    return b * cosine + a * sine;
  }

 private:
  KVILT_HD void turn(float* x, idx position, float scale) const {
    if (pairs == rope_pairs::half_split)
      turn_pairs<1>(x + first, x + first + dims / 2, position, scale);
    else
      turn_pairs<2>(x + first, x + first + 1, position, scale);
  }

  template <int Stride>
  KVILT_HD void turn_pairs(float* a, float* b, idx position, float scale) const {
    for (int i = 0; i < dims / 2; ++i) {
      float sine, cosine;
      sine_cosine_of(i, position, sine, cosine);
      const float a0 = scale * a[Stride * i], b0 = scale * b[Stride * i];
      a[Stride * i] = first_turned(a0, b0, sine, cosine);
      b[Stride * i] = second_turned(a0, b0, sine, cosine);
    }
  }

  KVILT_HD static void sine_cosine(std::uint64_t turn, float& sine, float& cosine) {
    const std::uint32_t fraction = std::uint32_t(turn >> 32);
#if defined(__CUDA_ARCH__)
    // NOTE: as a signed fraction: an angle in [-pi, pi), as exact as an fp32 number of half turns is.
    sincospif(float(std::int32_t(fraction)) * 0x1p-31f, &sine, &cosine);
#else
    // The nearest quarter of a turn is taken off exactly; the rest, at most 1/8, goes into polynomials (S. Moshier,
    // Cephes sinf). Straight code on bits: branches and calls would keep compilers from vectorising.
    const std::uint32_t quarter = (fraction + 0x20000000u) >> 30;
    const float x = float(std::int32_t(fraction - (quarter << 30))) * 1.4629180792671596e-9f;  // 2 pi / 2^32
    const float z = x * x;
    const float s = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * x + x;
    const float c =
        ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z - 0.5f * z + 1;
    const std::uint32_t swapped = (bits_of(s) ^ bits_of(c)) & (0u - (quarter & 1));
    sine = float_of(bits_of(s) ^ swapped ^ (quarter & 2) << 30);
    cosine = float_of(bits_of(c) ^ swapped ^ ((quarter + 1) & 2) << 30);
#endif
  }
};

/// What a model was trained with: pair i < dims / 2 turns by base^(-2i / dims) radians per token.
struct rope_basis {
  int dims = 0;
  double base = 1e4;

  double theta(int pair) const { return std::pow(base, -2.0 * pair / dims); }
};

/// How a model is stretched beyond the length that it was trained for; scaling.hpp has the known ones.
///   `double theta(rope_basis, int pair) const`  radians per token, not negative
/// Optional:
///   `double magnitude() const`                  of what turns, 1 if absent
///   `void check(rope_basis) const`              throws `invalid_argument` for parameters that make no sense
template <class S>
concept rope_scaling = requires(const S s, rope_basis b, int pair) {
  { s.theta(b, pair) } -> std::same_as<double>;
};

/// Owns the frequencies of a `rope`.
class rope_table {
 public:
  /// theta_i = base^(-2i / dims) / factor_i radians per token, i < dims / 2; `factors` empty: 1 (Llama 3's GGUF files
  /// carry them as `rope_freqs.weight`). Throws `invalid_argument` where dims is odd, base or a factor not above 0, or
  /// one of them not finite.
  rope_table(int dims, double base, rope_pairs pairs, std::span<const float> factors = {}) : pairs_(pairs) {
    const rope_basis basis = checked(dims, base);
    detail::expects(factors.empty() || int(factors.size()) == dims / 2, "RoPE over ", dims, " numbers has ",
                    factors.size(), " factors; ", dims / 2, " or none are needed");
    for (int i = 0; i < dims / 2; ++i) {
      const double factor = factors.empty() ? 1.0 : double(factors[std::size_t(i)]);
      detail::expects(factor > 0 && factor < HUGE_VAL, "RoPE's factor ", i, " is ", factor,
                      "; a positive, finite one is needed");
      add(basis.theta(i) / factor);
    }
  }

  /// Frequencies and magnitude of a scaling, e.g. `rope_table(128, 5e5, pairs, llama3_scaling{})`.
  template <rope_scaling Scaling>
  rope_table(int dims, double base, rope_pairs pairs, const Scaling& scaling) : pairs_(pairs) {
    const rope_basis basis = checked(dims, base);
    if constexpr (requires { scaling.check(basis); }) scaling.check(basis);
    for (int i = 0; i < dims / 2; ++i) add(scaling.theta(basis, i));
    if constexpr (requires { scaling.magnitude(); }) {
      detail::check_magnitude(scaling.magnitude());
      magnitude_ = float(scaling.magnitude());
    }
  }

  operator rope() const& { return {turns_.data(), 2 * int(turns_.size()), pairs_, magnitude_}; }
  operator rope() && = delete;

 private:
  static rope_basis checked(int dims, double base) {
    detail::expects(dims >= 0 && dims % 2 == 0, "RoPE over ", dims, " numbers; an even count is needed");
    detail::expects(base > 0 && base < HUGE_VAL, "RoPE with base ", base, "; a positive, finite one is needed");
    return {dims, base};
  }

  void add(double theta) {
    detail::expects(theta >= 0 && theta < 1e18, "RoPE's pair ", turns_.size(), " turns by ", theta,
                    " radians per token; 0 or a positive number is needed");
    constexpr double two_pi = 6.283185307179586476925;
    const double turns = theta / two_pi;
    turns_.push_back(static_cast<std::uint64_t>(std::ldexp(turns - std::floor(turns), 64)));
  }

  std::vector<std::uint64_t> turns_;
  rope_pairs pairs_;
  float magnitude_ = 1;
};

}  // namespace kvilt::inline KVILT_ABI
