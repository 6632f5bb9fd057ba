#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/math.hpp>
#include <kvilt/core/types.hpp>

#include <algorithm>
#include <cmath>
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

/// The places of the `places.size()` rows that stay, ascending: those that are protected, then those of the highest
/// scores, of equal ones the newest. NaN is the lowest score. Throws `invalid_argument` where there are fewer rows, or
/// more are protected.
inline void best_places(std::span<const float> scores, protected_rows ends, std::span<int> places) {
  const idx rows = idx(scores.size()), count = idx(places.size());
  const idx first = smaller(ends.first, rows), last = smaller(ends.last, rows - first);
  detail::expects(ends.first >= 0 && ends.last >= 0, "the first ", ends.first, " and the last ", ends.last,
                  " rows are protected; neither may be negative");
  detail::expects(count <= rows && first + last <= count, count, " of ", rows, " rows are to stay; of these ", first,
                  " at the beginning and ", last, " at the end are protected");
  std::vector<int> order(std::size_t(rows - first - last));
  std::iota(order.begin(), order.end(), int(first));
  const auto better = [&](int a, int b) {
    const float x = scores[std::size_t(a)], y = scores[std::size_t(b)];
    if (std::isnan(x) || std::isnan(y) || x == y) return std::isnan(x) == std::isnan(y) ? a > b : std::isnan(y);
    return x > y;
  };
  const auto chosen = order.begin() + std::ptrdiff_t(count - first - last);
  if (chosen != order.end()) std::nth_element(order.begin(), chosen, order.end(), better);
  std::sort(order.begin(), chosen);
  std::iota(places.begin(), places.begin() + first, 0);
  std::copy(order.begin(), chosen, places.begin() + first);
  std::iota(places.end() - last, places.end(), int(rows - last));
}

/// How many rows each layer keeps where the lower ones keep more (Z. Cai et al., "PyramidKV", 2024): `window` in all, and
/// of the others, `count - window` on average, a number that falls from layer to layer by the same amount, down to the
/// `beta`-th part in the last: 2 (count - window) - least in the first, least = (count - window) / beta. No layer has more
/// than `rows`, and all have layers x count together. Layers of one budget are a group of a `cache_set`.
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
