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

quality score_sheet::summary(const band& of) const {
  quality q;
  std::vector<double> divergences;
  double same_top = 0, surprise = 0, change = 0, change_squares = 0, late_surprise = 0, late = 0;
  for (const auto& [position, score] : scores_) {
    if (position < of.first || position >= of.last) continue;
    divergences.push_back(score.divergence);
    same_top += score.same_top;
    surprise += score.surprise;
    change += score.surprise_change;
    change_squares += score.surprise_change * score.surprise_change;
    if (position >= late_from) late_surprise += score.surprise, ++late;
  }
  if (divergences.empty()) return q;
  q.positions = static_cast<int>(divergences.size());
  const auto n = static_cast<double>(divergences.size());
  const auto error_of_mean = [n](double mean, double squares) {
    return n > 1 ? std::sqrt(std::max(squares / n - mean * mean, 0.0) / (n - 1)) : 0;
  };
  std::sort(divergences.begin(), divergences.end());
  double divergence_squares = 0;
  for (const double d : divergences) q.kld_mean += d / n, divergence_squares += d * d;
  q.kld_se = error_of_mean(q.kld_mean, divergence_squares);
  q.kld_p999 = divergences[static_cast<std::size_t>(std::ceil(0.999 * n)) - 1];
  q.top1 = 100 * same_top / n;
  q.dlnppl = change / n;
  q.dlnppl_se = error_of_mean(q.dlnppl, change_squares);
  q.perplexity = std::exp(surprise / n);
  if (late > 0) q.late_perplexity = std::exp(late_surprise / late);
  return q;
}

}  // namespace example
