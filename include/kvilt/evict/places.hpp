#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/math.hpp>
#include <kvilt/core/types.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// Rows that stay whatever their scores are (G. Xiao et al., "Efficient streaming language models with attention sinks",
/// 2023: the first tokens take the attention that no other wants, and the newest are the text at hand).
struct protected_rows {
  idx first = 4;
  idx last = 32;
};

namespace detail {

/// Of `rows` rows, those that may go: places [first, last).
inline position_range unprotected(protected_rows ends, idx rows) {
  expects(ends.first >= 0 && ends.last >= 0, "the first ", ends.first, " and the last ", ends.last,
          " rows are protected; neither may be negative");
  const idx first = smaller(ends.first, rows);
  return {first, rows - smaller(ends.last, rows - first)};
}

/// How a score compares with another: more than 0 where it is better. NaN is the lowest.
inline int against(float x, float y) {
  if (std::isnan(x) || std::isnan(y)) return int(std::isnan(y)) - int(std::isnan(x));
  return int(x > y) - int(x < y);
}

}  // namespace detail

/// The places of the `places.size()` rows that stay, ascending: those that are protected, then those of the highest
/// scores, of equal ones the newest. NaN is the lowest score. Throws `invalid_argument` where there are fewer rows, or
/// more are protected.
inline void best_places(std::span<const float> scores, protected_rows ends, std::span<int> places) {
  const idx rows = idx(scores.size()), count = idx(places.size());
  const position_range may_go = detail::unprotected(ends, rows);
  const idx first = may_go.first, last = rows - may_go.last;
  detail::expects(count <= rows && first + last <= count, count, " of ", rows, " rows are to stay; of these ", first,
                  " at the beginning and ", last, " at the end are protected");
  std::vector<int> order(std::size_t(rows - first - last));
  std::iota(order.begin(), order.end(), int(first));
  const auto better = [&](int a, int b) {
    const int c = detail::against(scores[std::size_t(a)], scores[std::size_t(b)]);
    return c == 0 ? a > b : c > 0;
  };
  const auto chosen = order.begin() + std::ptrdiff_t(count - first - last);
  if (chosen != order.end()) std::nth_element(order.begin(), chosen, order.end(), better);
  std::sort(order.begin(), chosen);
  std::iota(places.begin(), places.begin() + first, 0);
  std::copy(order.begin(), chosen, places.begin() + first);
  std::iota(places.end() - last, places.end(), int(rows - last));
}

/// One budget of a layer for all of its KV heads together, shared out by the scores of their rows (Y. Feng et al.,
/// "Ada-KV: optimizing KV cache eviction by adaptive budget allocation for efficient LLM inference", 2024).
struct ada_kv {
  double floor = 0.2;  // of an even share, that each head has whatever its scores are: the safeguard; 1: even shares
};

/// How many rows each KV head keeps where the layer keeps `count` of each on average: the protected ones and, up to `floor`
/// of `count`, those of its own highest scores; then of what all heads have left, those of the highest scores, of equal ones
/// the newest, then those of the first head. None keeps more than it has, and all keep heads x count together, or all rows.
/// scores: [kv heads], each of the head's rows; `best_places` finds the rows. Throws `invalid_argument` where more than
/// `count` are protected.
inline std::vector<idx> ada_counts(std::span<const std::span<const float>> scores, protected_rows ends, idx count,
                                   ada_kv share = {}) {
  detail::expects(count >= 0 && share.floor >= 0 && share.floor <= 1, "heads keep ", count,
                  " rows on average, and each is sure of ", share.floor,
                  " of these; no negative number, and one from 0 to 1 are needed");
  struct candidate {
    float score;
    idx age;  // rows of its head that are newer
    int head;
  };
  const auto better = [](const candidate& a, const candidate& b) {
    const int c = detail::against(a.score, b.score);
    if (c != 0) return c > 0;
    return a.age != b.age ? a.age < b.age : a.head < b.head;
  };
  std::vector<idx> counts;
  std::vector<candidate> pool, own;
  idx left = count * idx(scores.size());
  for (const std::span<const float>& of : scores) {
    const idx rows = idx(of.size()), head = idx(counts.size());
    const position_range may_go = detail::unprotected(ends, rows);
    const idx sure = rows - (may_go.last - may_go.first);
    detail::expects(sure <= count, "head ", head, " keeps ", count, " rows on average; ", sure, " of its ", rows,
                    " are protected");
    own.clear();
    for (idx i = may_go.first; i < may_go.last; ++i) own.push_back({of[std::size_t(i)], rows - 1 - i, int(head)});
    const idx floor = smaller(rows, larger(sure, idx(share.floor * double(count))));
    const auto first = own.begin() + std::ptrdiff_t(floor - sure);
    if (first != own.end()) std::nth_element(own.begin(), first, own.end(), better);
    pool.insert(pool.end(), first, own.end());
    counts.push_back(floor);
    left -= floor;
  }
  const auto end = pool.begin() + std::ptrdiff_t(smaller(left, idx(pool.size())));
  if (end != pool.end()) std::nth_element(pool.begin(), end, pool.end(), better);
  for (auto c = pool.begin(); c != end; ++c) ++counts[std::size_t(c->head)];
  return counts;
}

/// How many rows each layer keeps where the lower ones keep more (Z. Cai et al., "PyramidKV", 2024): `window` in all, and
/// of the others, `count - window` on average, a number that falls from layer to layer by the same amount, down to the
/// `beta`-th part in the last: 2 (count - window) - least in the first, least = (count - window) / beta. No layer has more
/// than `rows`, and all have layers x count together. Layers of one budget are a group of a `cache_set`, or of a cache with
/// page tables by head.
inline std::vector<idx> pyramid_counts(int layers, idx count, idx rows, idx window = 32, double beta = 20) {
  detail::expects(layers >= 1 && window >= 0 && count >= window && count <= rows && beta >= 1, layers, " layers keep ",
                  count, " of ", rows, " rows on average, ", window, " of them the newest, and the last layer 1 in ",
                  beta, " of the others; 1 layer or more, 0 <= window <= count <= rows and 1 or more are needed");
  const double mean = double(count - window), most = std::fmin(2 * mean - mean / beta, double(rows - window));
  const double step = layers > 1 ? 2 * (most - mean) / (layers - 1) : 0;
  std::vector<idx> counts;
  idx given = 0;
  for (int layer = 0; layer < layers; ++layer) {
    // NOTE: rounded where they are added up, so that none is lost.
    const double all = layers > 1 ? (layer + 1) * most - step * (layer + 1) * layer / 2 : mean;
    counts.push_back(window + idx(std::llround(all)) - given);
    given = idx(std::llround(all));
  }
  return counts;
}

}  // namespace kvilt::inline KVILT_ABI
