#include "metrics.hpp"

#include "exponential.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace example {
namespace {

// In several partial sums, so that the compiler may use vectors without leave to reorder sums.
template <typename Term>
double sum_over(int count, const Term& term) {
  constexpr int lanes = 16;
  std::array<double, lanes> partial{};
  int i = 0;
  for (; i + lanes <= count; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) partial[std::size_t(lane)] += term(i + lane);
  double sum = 0;
  for (; i < count; ++i) sum += term(i);
  for (const double p : partial) sum += p;
  return sum;
}

// std::max_element looks at one number at a time.
int first_largest(const float* logits, int vocab) {
  constexpr int lanes = 16;
  std::array<float, lanes> best;
  best.fill(logits[0]);
  int i = 0;
  for (; i + lanes <= vocab; i += lanes)
    for (int lane = 0; lane < lanes; ++lane)
      best[std::size_t(lane)] = logits[i + lane] > best[std::size_t(lane)] ? logits[i + lane] : best[std::size_t(lane)];
  float high = *std::max_element(best.begin(), best.end());
  for (; i < vocab; ++i) high = std::max(high, logits[i]);
  return static_cast<int>(std::find(logits, logits + vocab, high) - logits);
}

}  // namespace

distribution distribution_of(const float* logits, int vocab) {
  distribution d;
  d.top = first_largest(logits, vocab);
  const double high = logits[d.top];
  d.log_sum = high + std::log(sum_over(vocab, [&](int i) { return vector_exp(logits[i] - high); }));
  return d;
}

void probabilities_of(const float* logits, const distribution& d, int vocab, float* out) {
  for (int i = 0; i < vocab; ++i) out[i] = static_cast<float>(vector_exp(logits[i] - d.log_sum));
}

position_score score_position(const reference_row& reference, const float* logits, int vocab, int next_token) {
  const distribution d = distribution_of(logits, vocab);
  const double expected_change = sum_over(vocab, [&](int i) {  // of the logits, under the reference
    return double(reference.probabilities[i]) * (double(reference.logits[i]) - double(logits[i]));
  });
  const double surprise = d.log_sum - logits[next_token];
  return {
      .divergence = std::max(expected_change - (reference.shape.log_sum - d.log_sum), 0.0),
      .surprise = surprise,
      .surprise_change = surprise - (reference.shape.log_sum - reference.logits[next_token]),
      .same_top = d.top == reference.shape.top,
  };
}

void score_sheet::add(int position, const position_score& score) {
  divergences_.push_back(score.divergence);
  same_top_ += score.same_top;
  surprise_ += score.surprise;
  change_ += score.surprise_change;
  change_squares_ += score.surprise_change * score.surprise_change;
  if (position >= late_from) {
    late_surprise_ += score.surprise;
    ++late_;
  }
}

quality score_sheet::summary() const {
  quality q;
  if (divergences_.empty()) return q;
  const auto n = static_cast<double>(divergences_.size());
  std::vector<double> sorted = divergences_;
  std::sort(sorted.begin(), sorted.end());
  for (const double d : sorted) q.kld_mean += d / n;
  q.kld_p999 = sorted[static_cast<std::size_t>(std::ceil(0.999 * n)) - 1];
  q.top1 = 100 * same_top_ / n;
  q.dlnppl = change_ / n;
  const double variance = std::max(change_squares_ / n - q.dlnppl * q.dlnppl, 0.0);
  q.dlnppl_se = n > 1 ? std::sqrt(variance / (n - 1)) : 0;
  q.perplexity = std::exp(surprise_ / n);
  if (late_ > 0) q.late_perplexity = std::exp(late_surprise_ / late_);
  return q;
}

}  // namespace example
