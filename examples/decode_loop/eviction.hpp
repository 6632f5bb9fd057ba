#pragma once

#include <kvilt/core/types.hpp>
#include <kvilt/evict/expected_attention.hpp>
#include <kvilt/evict/h2o.hpp>
#include <kvilt/evict/key_norm.hpp>
#include <kvilt/evict/places.hpp>
#include <kvilt/evict/snap_kv.hpp>
#include <kvilt/evict/tova.hpp>

#include <algorithm>
#include <variant>
#include <vector>

namespace example {

// No token is worth more than another, so that the protected and the newest stay: sinks and a window.
struct newest {
  static constexpr bool running = false;
  int queries() const { return 0; }

  template <kvilt::host_view View>
  void operator()(const View& view, const kvilt::asked_rows& asked, kvilt::rows<float> scores) const {
    for (int head = 0; head < view.kv_heads(); ++head) std::fill_n(scores.at(0, head), asked.count, 0.0f);
  }
};

// Expected attention, of the moments that a session gathers of its queries, at so many positions behind the newest.
struct expected_queries {
  kvilt::idx ahead = 512;  // as its authors have it

  static constexpr bool running = false;
  int queries() const { return 0; }
};

using eviction_score = std::variant<newest, kvilt::h2o, kvilt::tova, kvilt::snap_kv, kvilt::key_norm, expected_queries>;

// How heads share the rows of their layer, where each has pages of its own.
struct head_shares {
  kvilt::ada_kv share = {};
  bool pyramid = false;  // lower layers have more
};

// Which rows stay where not all may: `keep` of them, after each block of tokens, of which there are up to `block`.
struct eviction {
  static constexpr kvilt::idx block = 128;

  eviction_score score = {};
  kvilt::idx keep = 0;  // of each head, by head on average
  kvilt::protected_rows ends = {};
  head_shares heads = {};
  kvilt::idx spare = 0;  // of each head, rows of pages that are partly empty

  // Rows that a sequence may have at one time, of each head, by head on average.
  kvilt::idx most_rows(kvilt::idx tokens, int max_step) const {
    return std::min(tokens, keep + std::max<kvilt::idx>(block, max_step) + spare);
  }
  // How many stay by head in each of so many layers.
  std::vector<kvilt::idx> counts(int layers, kvilt::idx tokens) const {
    if (heads.pyramid) return kvilt::pyramid_counts(layers, keep, tokens, std::min<kvilt::idx>(32, keep));
    return std::vector<kvilt::idx>(std::size_t(layers), keep);
  }
};

}  // namespace example
