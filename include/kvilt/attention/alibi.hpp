#pragma once

#include <kvilt/attention/variant.hpp>
#include <kvilt/core/given.hpp>

#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// Attention with linear biases (O. Press et al., "Train short, test long", 2022): a key at distance d loses slope x d,
/// after scale and soft cap. To be composed with `causal`, last. With widths each head is a window: see `alibi_width`.
struct alibi {
  const float* slopes = nullptr;  // [q heads], positive
  const idx* widths = nullptr;    // [q heads]: keys that a query sees, its own included; null: all

  void check() const { detail::check_memory(slopes, 1, "the list of ALiBi's slopes"); }
  KVILT_HD constexpr float score(const where& w, float s) const {
    return s - slopes[w.q_head] * float(w.q_position - w.k_position);
  }
  KVILT_HD constexpr bool keep(const where& w) const { return w.k_position >= first(w); }
  KVILT_HD constexpr position_range tiles(const where& w) const { return {larger(0, first(w)), detail::no_end}; }
  KVILT_HD constexpr bool whole(const where& w, position_range r) const { return r.first >= first(w); }

 private:
  KVILT_HD constexpr idx first(const where& w) const { return widths ? w.q_position + 1 - widths[w.q_head] : 0; }
};

/// How many keys a head with ALiBi has to see, its query's own included, for what is left out to be at most `error` of
/// the softmax's mass, whatever the numbers are: given that no logit before the bias is beyond +-bound, and that a query
/// sees its own key. Other masks, eviction and a sink may take away or add what they like.
///
/// The own key has no bias and weighs e^-bound or more. Those at distance W and beyond weigh together at most
/// e^bound (e^-mW + e^-m(W+1) + ...) = e^bound e^-mW / (1 - e^-m), m the slope. So their share is below
/// e^(2 bound) e^-mW / (1 - e^-m), which is `error` at W = (2 bound - ln error - ln(1 - e^-m)) / m. With m = 1/2, bound
/// 10 and error 1e-6 that is 70 keys; with m = 1/256, 10,077. Nothing is left out without a bound (infinity, NaN): logit_bound.hpp has
/// what one is made of, and a soft cap is one.
inline idx alibi_width(double slope, double bound, double error) {
  detail::expects(slope > 0, "an ALiBi slope is ", slope, "; a positive one is needed");
  detail::expects(!(bound < 0), "logits are bounded by ", bound, "; 0 or more is needed");
  detail::expects(error > 0, "the share of mass that ALiBi may leave out is ", error, "; a positive one is needed");
  const double width = std::ceil((2 * bound - std::log(error) - std::log(-std::expm1(-slope))) / slope);
  return width < 1e15 ? larger(1, idx(width)) : detail::no_end;
}

/// Owns the slopes of an `alibi`, and its windows.
class alibi_table {
 public:
  /// Of `heads` query heads. For a power of two n: 2^(-8/n), 2^(-16/n), ...; for other counts those of the power below,
  /// then every other of the power above. Throws `invalid_argument` without heads.
  explicit alibi_table(int heads) {
    detail::expects(heads >= 1, "ALiBi over ", heads, " heads; 1 or more are needed");
    int power = 1;
    while (power * 2 <= heads) power *= 2;
    for (int h = 1; h <= power; ++h) slopes_.push_back(float(std::exp2(-8.0 * h / power)));
    for (int h = 1; h <= heads - power; ++h) slopes_.push_back(float(std::exp2(-4.0 * (2 * h - 1) / power)));
  }
  /// A model's own.
  explicit alibi_table(std::span<const float> slopes) : slopes_(slopes.begin(), slopes.end()) {}

  /// Lets each head see `alibi_width` keys; with another bound, anew. Throws what it throws.
  void truncate(double bound, double error) {
    std::vector<idx> widths;
    for (const float slope : slopes_) widths.push_back(alibi_width(double(slope), bound, error));
    widths_ = std::move(widths);
  }

  operator alibi() const& { return {slopes_.data(), widths_.empty() ? nullptr : widths_.data()}; }
  operator alibi() && = delete;

  std::span<const float> slopes() const { return slopes_; }
  std::span<const idx> widths() const { return widths_; }

 private:
  std::vector<float> slopes_;
  std::vector<idx> widths_;
};

static_assert(attention_variant<alibi> && attention_variant<composed<causal, alibi>>);

}  // namespace kvilt::inline KVILT_ABI
