#pragma once

#include <kvilt/evict/score.hpp>

#include <algorithm>

namespace kvilt::inline KVILT_ABI {

/// Scores from outside, of a model of its own or of a second pass (J.-H. Kim et al., "KVzip", 2025): one number for each
/// row of each layer's heads.
struct given_scores {
  rows<const float> scores;  // [layers][kv heads][rows]

  static constexpr bool running = false;
  int queries() const { return 0; }

  template <host_view View>
  void operator()(const View& view, const asked_rows& asked, rows<float> to) const {
    detail::expects(scores.heads == view.kv_heads() && scores.dim >= asked.count, "scores of ", scores.dim, " rows in ",
                    scores.heads, " heads are given; the sequence has ", asked.count, " in ", view.kv_heads());
    for (int head = 0; head < view.kv_heads(); ++head)
      std::copy_n(scores.at(asked.layer, head), asked.rows_of(head), to.at(0, head));
  }
};

}  // namespace kvilt::inline KVILT_ABI
