#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/types.hpp>

#include <cmath>
#include <span>
#include <vector>

namespace kvilt::inline KVILT_ABI {

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
  int dims = 0;                          // leading numbers of a row that turn; the rest stay
  rope_pairs pairs = rope_pairs::half_split;
  float magnitude = 1;  // of rotated rows (YaRN's attention factor)

  /// A row at `position`.
  KVILT_HD void apply(float* x, idx position) const { turn(x, position, magnitude); }
  /// A row that `apply` has turned, moved on by `tokens` positions; back by a negative number.
  KVILT_HD void shift(float* x, idx tokens) const { turn(x, tokens, 1.0f); }

 private:
  KVILT_HD void turn(float* x, idx position, float scale) const {
    const int step = pairs == rope_pairs::half_split ? dims / 2 : 1, stride = pairs == rope_pairs::half_split ? 1 : 2;
    for (int i = 0; i < dims / 2; ++i) {
      float sine, cosine;
      sine_cosine(std::uint64_t(position) * turns[i], sine, cosine);
      float& a = x[stride * i];
      float& b = x[stride * i + step];
      const float a0 = scale * a, b0 = scale * b;
      a = a0 * cosine - b0 * sine;
      b = b0 * cosine + a0 * sine;
    }
  }

  KVILT_HD static void sine_cosine(std::uint64_t turn, float& sine, float& cosine) {
    // NOTE: the upper 32 bits as a signed fraction: an angle in [-pi, pi), as exact as an fp32 number of half turns is.
    const float half_turns = float(std::int32_t(turn >> 32)) * 0x1p-31f;
#if defined(__CUDA_ARCH__)
    sincospif(half_turns, &sine, &cosine);
#else
    sine = __builtin_sinf(half_turns * 3.14159265358979f);
    cosine = __builtin_cosf(half_turns * 3.14159265358979f);
#endif
  }
};

/// Owns the frequencies of a `rope`.
class rope_table {
 public:
  /// theta_i = base^(-2i / dims) / factor_i radians per token, i < dims / 2; `factors` empty: 1 (Llama 3's GGUF files
  /// carry them as `rope_freqs.weight`). Throws `invalid_argument` where dims is odd, base or a factor not above 0.
  rope_table(int dims, double base, rope_pairs pairs, std::span<const float> factors = {}) : pairs_(pairs) {
    detail::expects(dims >= 0 && dims % 2 == 0, "RoPE over ", dims, " numbers; an even count is needed");
    detail::expects(base > 0, "RoPE with base ", base, "; a positive one is needed");
    detail::expects(factors.empty() || int(factors.size()) == dims / 2, "RoPE over ", dims, " numbers has ",
                    factors.size(), " factors; ", dims / 2, " or none are needed");
    constexpr double two_pi = 6.283185307179586476925;
    for (int i = 0; i < dims / 2; ++i) {
      const double factor = factors.empty() ? 1.0 : double(factors[std::size_t(i)]);
      detail::expects(factor > 0, "RoPE's factor ", i, " is ", factor, "; a positive one is needed");
      const double turns = std::pow(base, -2.0 * i / dims) / factor / two_pi;
      turns_.push_back(static_cast<std::uint64_t>(std::ldexp(turns - std::floor(turns), 64)));
    }
  }

  operator rope() const& { return {turns_.data(), 2 * int(turns_.size()), pairs_, 1.0f}; }
  operator rope() && = delete;

 private:
  std::vector<std::uint64_t> turns_;
  rope_pairs pairs_;
};

}  // namespace kvilt::inline KVILT_ABI
