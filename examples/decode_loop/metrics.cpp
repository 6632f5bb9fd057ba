#include "metrics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace example {

distribution distribution_of(const float* logits, int vocab) {
  distribution d;
  d.top = static_cast<int>(std::max_element(logits, logits + vocab) - logits);
  const double high = logits[d.top];
  double sum = 0;
  for (int i = 0; i < vocab; ++i) sum += std::exp(logits[i] - high);
  d.log_sum = high + std::log(sum);
  return d;
}

void probabilities_of(const float* logits, const distribution& d, int vocab, float* out) {
  for (int i = 0; i < vocab; ++i) out[i] = static_cast<float>(std::exp(logits[i] - d.log_sum));
}

position_score score_position(const reference_row& reference, const float* logits, int vocab, int next_token) {
  const distribution d = distribution_of(logits, vocab);
  double expected_change = 0;  // of the logits, under the reference
  for (int i = 0; i < vocab; ++i)
    expected_change += double(reference.probabilities[i]) * (double(reference.logits[i]) - double(logits[i]));
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
