#pragma once

#include "support/catch.hpp"
#include "support/random.hpp"

#include <kvilt/attention/variant.hpp>

namespace support {

// Holds both hints of a variant against its `keep`, over random queries of 4 heads and 2 sequences at positions below
// 160, and random ranges. Returns how many ranges were whole: none at all would prove nothing.
template <class Variant>
int whole_ranges(const Variant& variant, int most_queries = 70, int least_position = -20) {
  dice d(7);
  int whole = 0;
  bool hints_hold = true;
  for (int i = 0; i < 3000; ++i) {
    const int q_index = d.below(most_queries), head = d.below(4);
    const kvilt::idx position = kvilt::larger(least_position, q_index + d.below(90) - (i % 50 == 0 ? 20 : 0));
    const kvilt::where asked{d.below(2), head, head / 2, q_index, position, 0};
    const kvilt::position_range r = {d.below(170), d.below(3) == 0 ? position + 1 : d.below(200)};
    const kvilt::position_range tiles = kvilt::detail::tiles_of(variant, asked);
    const bool said = kvilt::detail::keeps_whole(variant, asked, r);
    for (kvilt::where w = asked; w.k_position < 200; ++w.k_position) {
      const bool kept = kvilt::detail::keeps(variant, w), in = w.k_position >= r.first && w.k_position < r.last;
      hints_hold &= !said || !in || kept;
      hints_hold &= !kept || (w.k_position >= tiles.first && w.k_position < tiles.last);
    }
    if (said && r.first < r.last) ++whole;
  }
  CHECK(hints_hold);
  return whole;
}

}  // namespace support
