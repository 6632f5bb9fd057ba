#pragma once

#include <kvilt/position/rope.hpp>

#include <cmath>
#include <span>

namespace kvilt::inline KVILT_ABI {
namespace detail {

inline void check_stretch(double factor) {
  expects(factor >= 1 && factor < HUGE_VAL, "RoPE is stretched by a factor of ", factor,
          "; a finite one of 1 or more is needed");
}
inline void check_trained(double trained) {
  expects(trained > 1 && trained < HUGE_VAL, "RoPE was trained over ", trained,
          " tokens; more than 1 and a finite number are needed");
}
inline void check_length(double length) {
  expects(length >= 0 && length < HUGE_VAL, "RoPE is made for a text of ", length,
          " tokens; 0 or a positive, finite number is needed");
}
/// The base under which the slowest pair turns `factor` times slower, and the fastest as before.
inline rope_basis stretched_base(rope_basis b, double factor) {
  return {b.dims, b.base * std::pow(factor, double(b.dims) / (b.dims - 2))};
}
inline void check_base_stretch(rope_basis b, double factor) {
  expects(b.dims == 0 || b.dims > 2, "RoPE over ", b.dims, " numbers has no base to stretch; more than 2 are needed");
  expects(b.dims == 0 || stretched_base(b, factor).base < HUGE_VAL, "RoPE's base ", b.base,
          " stretched by a factor of ", factor, " is not finite");
}

}  // namespace detail

/// Position interpolation: every pair turns `factor` times slower (S. Chen et al., "Extending context window of large
/// language models via positional interpolation", 2023).
struct linear_scaling {
  double factor = 1;

  double theta(rope_basis b, int pair) const { return b.theta(pair) / factor; }
  void check(rope_basis) const { detail::check_stretch(factor); }
};

/// NTK-aware: another base, so that fast pairs hardly change and the slowest turns `factor` times slower (bloc97, 2023;
/// in print in B. Peng et al., "YaRN", 2023, section 3.1).
struct ntk_scaling {
  double factor = 1;

  double theta(rope_basis b, int pair) const { return detail::stretched_base(b, factor).theta(pair); }
  void check(rope_basis b) const {
    detail::check_stretch(factor);
    detail::check_base_stretch(b, factor);
  }
};

/// NTK-aware with a factor that grows with the text (B. Peng et al., "YaRN", 2023, section 3.3, as Hugging Face's
/// transformers has it: factor x length / trained - (factor - 1)). Keys turned under one length are wrong under the
/// next: append them without RoPE, make the table anew as the text grows, and read with `rope_on_read`.
struct dynamic_ntk_scaling {
  double factor = 1;
  double trained = 0;  // tokens; shorter texts are not scaled
  double length = 0;   // tokens of the text now

  double theta(rope_basis b, int pair) const { return detail::stretched_base(b, grown()).theta(pair); }
  void check(rope_basis b) const {
    detail::check_stretch(factor);
    detail::check_trained(trained);
    detail::check_length(length);
    detail::check_base_stretch(b, grown());
  }

 private:
  /// The factor by which the text stretches the base; 1 where it is no longer than the trained ones.
  double grown() const { return length <= trained ? 1 : factor * length / trained - (factor - 1); }
};

/// 0.1 weight ln(factor) + 1, by which YaRN multiplies turned rows; 1 where nothing is stretched, factor <= 1. Throws
/// `invalid_argument`.
inline double yarn_magnitude(double factor, double weight = 1) {
  detail::check_stretch(factor <= 1 ? 1 : factor);
  detail::expects(weight >= 0 && weight < HUGE_VAL, "YaRN's magnitude has a weight of ", weight,
                  "; 0 or a positive, finite one is needed");
  return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
}

/// YaRN: pairs that turn more than `fast` times over the trained length stay, those that turn less than `slow` times are
/// interpolated, those between in parts (B. Peng et al., "YaRN", 2023, section 3.2 and equation 22).
struct yarn_scaling {
  double factor = 1;
  double trained = 0;  // tokens
  double fast = 32, slow = 1;
  bool whole = true;  // the two limits are rounded outwards to whole pairs; gpt-oss does not
  // Of turned rows; 0: yarn_magnitude(factor). DeepSeek's mscale and mscale_all_dim: the quotient of their magnitudes.
  double attention_factor = 0;

  double theta(rope_basis b, int pair) const {
    double low = pair_that_turns(b, fast), high = pair_that_turns(b, slow);
    if (whole) low = std::floor(low), high = std::ceil(high);
    low = std::fmax(low, 0), high = std::fmin(high, b.dims - 1);
    const double interpolated = pair <= low ? 0 : pair >= high ? 1 : (pair - low) / (high - low);
    return b.theta(pair) * (1 - interpolated) + b.theta(pair) / factor * interpolated;
  }
  double magnitude() const { return attention_factor != 0 ? attention_factor : yarn_magnitude(factor); }
  void check(rope_basis b) const {
    detail::check_stretch(factor);
    detail::check_trained(trained);
    detail::expects(fast > slow && slow > 0 && fast < HUGE_VAL, "YaRN keeps pairs of ", fast,
                    " turns and interpolates those of ", slow, "; the first must be more, both positive and finite");
    detail::expects(b.base > 1, "YaRN with base ", b.base, "; one above 1 is needed");
  }

 private:
  /// The number, not rounded, of the pair that turns so often over the trained length.
  double pair_that_turns(rope_basis b, double times) const {
    constexpr double two_pi = 6.283185307179586476925;
    return b.dims * std::log(trained / (times * two_pi)) / (2 * std::log(b.base));
  }
};

/// Llama 3: wavelengths below trained / high stay, those above trained / low are interpolated, those between smoothly
/// (Llama team, "The Llama 3 herd of models", 2024; values of Llama 3.1).
struct llama3_scaling {
  double factor = 8;
  double low = 1, high = 4;
  double trained = 8192;  // tokens

  double theta(rope_basis b, int pair) const {
    constexpr double two_pi = 6.283185307179586476925;
    const double theta = b.theta(pair), turns = trained * theta / two_pi;
    const double kept = std::fmin(std::fmax((turns - low) / (high - low), 0), 1);
    return (1 - kept) * theta / factor + kept * theta;
  }
  void check(rope_basis) const {
    detail::check_stretch(factor);
    detail::check_trained(trained);
    detail::expects(high > low && low > 0 && high < HUGE_VAL, "Llama 3's RoPE interpolates between ", low, " and ",
                    high, " turns; the second must be more, both positive and finite");
  }
};

/// LongRoPE: a factor for every pair, found by search, one set for texts up to the trained length and one beyond (Y. Ding
/// et al., "LongRoPE", 2024). As with dynamic NTK, keys turned with one set are wrong under the other.
struct longrope_scaling {
  std::span<const float> short_factors, long_factors;  // [dims / 2] each
  double factor = 1;                                   // longest text / trained
  double trained = 0;                                  // tokens
  double length = 0;                                   // tokens of the text now
  double attention_factor = 0;                         // of turned rows; 0: sqrt(1 + ln(factor) / ln(trained))

  double theta(rope_basis b, int pair) const {
    return b.theta(pair) / double((length > trained ? long_factors : short_factors)[std::size_t(pair)]);
  }
  double magnitude() const {
    return attention_factor != 0 ? attention_factor : std::sqrt(1 + std::log(factor) / std::log(trained));
  }
  void check(rope_basis b) const {
    detail::check_stretch(factor);
    detail::check_trained(trained);
    const std::size_t pairs = std::size_t(b.dims / 2);
    detail::expects(short_factors.size() == pairs && long_factors.size() == pairs, "LongRoPE over ", b.dims,
                    " numbers has ", short_factors.size(), " short and ", long_factors.size(), " long factors; ", pairs,
                    " each are needed");
    detail::check_length(length);
    check_factors("short", short_factors);
    check_factors("long", long_factors);
  }

 private:
  static void check_factors(const char* which, std::span<const float> factors) {
    for (std::size_t i = 0; i < factors.size(); ++i)
      detail::expects(factors[i] > 0 && factors[i] < HUGE_VALF, "LongRoPE's ", which, " factor ", i, " is ", factors[i],
                      "; a positive, finite one is needed");
  }
};

/// The first `share` of the pairs turn, at the frequencies of the whole row; the rest stand still (Gemma 4's global
/// layers).
struct proportional_scaling {
  double share = 1;
  double factor = 1;

  double theta(rope_basis b, int pair) const { return pair < int(share * b.dims / 2) ? b.theta(pair) / factor : 0.0; }
  void check(rope_basis) const {
    detail::check_stretch(factor);
    detail::expects(share >= 0 && share <= 1, "a share of ", share, " of a row's pairs turn; 0 to 1 are needed");
  }
};

static_assert(rope_scaling<linear_scaling> && rope_scaling<ntk_scaling> && rope_scaling<dynamic_ntk_scaling> &&
              rope_scaling<yarn_scaling> && rope_scaling<llama3_scaling> && rope_scaling<longrope_scaling> &&
              rope_scaling<proportional_scaling>);

}  // namespace kvilt::inline KVILT_ABI
