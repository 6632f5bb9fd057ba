#pragma once

#include <kvilt/evict/score.hpp>

namespace kvilt::inline KVILT_ABI {

/// What the last `window` queries of a prompt give the tokens before them, averaged over these and over the query heads
/// of the KV head, then smoothed over `kernel` neighbours, so that what stays is in one piece; the window itself stays
/// (Y. Li et al., "SnapKV: LLM knows what you are looking for before generation", 2024). Once, after the prompt's last
/// step, which must have that many tokens. Beyond both ends an average takes in zeros, a maximum nothing.
struct snap_kv {
  enum class pooling : unsigned char { average, maximum };

  int window = 32;
  int kernel = 5;  // odd
  pooling pool = pooling::average;

  static constexpr bool running = false;
  int queries() const { return window; }

  template <host_view View>
  void operator()(const View& view, const asked_rows& asked, rows<float> scores) const {
    detail::expects(window >= 1 && kernel >= 1 && kernel % 2 == 1, "SnapKV over ", window, " queries and ", kernel,
                    " neighbours; 1 or more, and an odd number are needed");
    const idx reach = kernel / 2;
    for (int head = 0; head < view.kv_heads(); ++head) {
      const idx count = asked.rows_of(head), before = larger(count - window, 0);
      const float* const mass = asked.mass.at(0, head);
      for (idx i = 0; i < count; ++i) {
        float sum = 0, most = 0;
        for (idx j = larger(i - reach, 0); j < smaller(i + reach + 1, before); ++j)
          sum += mass[j], most = mass[j] > most ? mass[j] : most;
        const float pooled = pool == pooling::average ? sum / float(kernel) : most;
        scores.at(0, head)[i] =
            i < before ? pooled / float(window * asked.group) : std::numeric_limits<float>::infinity();
      }
    }
  }
};

}  // namespace kvilt::inline KVILT_ABI
