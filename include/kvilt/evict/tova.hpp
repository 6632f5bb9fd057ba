#pragma once

#include <kvilt/evict/score.hpp>

namespace kvilt::inline KVILT_ABI {

/// What the newest query gives a token, averaged over all heads of the layer, so that all of them keep the same tokens
/// (M. Oren et al., "Transformers are multi-state RNNs", 2024). To be asked after each step. Throws `invalid_argument` where
/// heads have kept different numbers of rows.
struct tova {
  static constexpr bool running = false;
  int queries() const { return 1; }

  template <host_view View>
  void operator()(const View& view, const asked_rows& asked, rows<float> scores) const {
    const int heads = view.kv_heads();
    for (int head = 0; head < heads; ++head)
      detail::expects(asked.rows_of(head) == asked.count, "TOVA is asked about ", asked.rows_of(head), " rows of head ",
                      head, " of layer ", asked.layer, " and ", asked.count,
                      " of another; its heads keep the same tokens");
    for (idx i = 0; i < asked.count; ++i) {
      float sum = 0;
      for (int head = 0; head < heads; ++head) sum += asked.mass.at(0, head)[i];
      for (int head = 0; head < heads; ++head) scores.at(0, head)[i] = sum / float(heads * asked.group);
    }
  }
};

}  // namespace kvilt::inline KVILT_ABI
