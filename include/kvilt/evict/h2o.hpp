#pragma once

#include <kvilt/evict/score.hpp>

namespace kvilt::inline KVILT_ABI {

/// Heavy hitters: how much attention a token has been given by all queries so far, summed over the query heads of its KV
/// head (Z. Zhang et al., "H2O: heavy-hitter oracle for efficient generative inference of large language models", 2023).
/// Old tokens have been seen by more queries; `mean` divides by how many that were:
///
///     A_t = sum over queries q >= t of p_qt        mean: A_t / (group x number of queries that saw t)
struct h2o {
  bool mean = false;

  static constexpr bool running = true;
  int queries() const { return all_queries; }

  template <host_view View>
  void operator()(const View& view, const asked_rows& asked, rows<float> scores) const {
    for (int head = 0; head < view.kv_heads(); ++head)
      each_row(view, asked.n, asked.sequence, head, [&](const auto&, place, idx position, idx i) {
        // NOTE: a token's own query sees it, and of those before none does.
        const idx seen = larger(1, smaller(asked.queries, asked.n.after - position));
        scores.at(0, head)[i] = asked.mass.at(0, head)[i] / (mean ? float(asked.group) * float(seen) : 1.0f);
      });
  }
};

}  // namespace kvilt::inline KVILT_ABI
