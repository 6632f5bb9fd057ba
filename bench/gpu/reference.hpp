#pragma once

#include <kvilt/core/types.hpp>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace bench {

using kvilt::idx;

/// What a query sees: the newest `window` tokens and the first `sinks`, or all.
struct seen_keys {
  idx position = 0;  // the query's
  idx window = 0;    // 0: all
  idx sinks = 0;

  bool operator()(idx key) const { return key <= position && (window == 0 || key < sinks || key > position - window); }
};

/// Attention of one query in double precision. q: [k_dim]; k: [tokens][k_dim]; v: [tokens][v_dim]
inline std::vector<double> attend_exactly(std::span<const float> q, std::span<const float> k, std::span<const float> v,
                                          std::size_t v_dim, const seen_keys& sees) {
  const std::size_t k_dim = q.size(), tokens = k.size() / k_dim;
  std::vector<double> scores(tokens, -HUGE_VAL), out(v_dim, 0.0);
  double largest = -HUGE_VAL, sum = 0;
  for (std::size_t t = 0; t < tokens; ++t) {
    if (!sees(idx(t))) continue;
    double score = 0;
    for (std::size_t d = 0; d < k_dim; ++d) score += double(q[d]) * double(k[t * k_dim + d]);
    scores[t] = score / std::sqrt(double(k_dim));
    largest = std::max(largest, scores[t]);
  }
  for (std::size_t t = 0; t < tokens; ++t) {
    if (!sees(idx(t))) continue;
    const double weight = std::exp(scores[t] - largest);
    sum += weight;
    for (std::size_t d = 0; d < v_dim; ++d) out[d] += weight * double(v[t * v_dim + d]);
  }
  for (double& x : out) x /= sum;
  return out;
}

/// |x - exact| / |exact|, of vectors; infinite where a number is none.
inline double relative_error(std::span<const float> x, std::span<const double> exact) {
  double off = 0, size = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    off += (double(x[i]) - exact[i]) * (double(x[i]) - exact[i]);
    size += exact[i] * exact[i];
  }
  const double error = std::sqrt(off / size);
  return error >= 0 ? error : HUGE_VAL;
}

}  // namespace bench
