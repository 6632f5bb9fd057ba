#pragma once

#include "support/random.hpp"

#include <kvilt/kvilt.hpp>

#include <algorithm>
#include <vector>

namespace support {

// Which `count` rows of a sequence stay, for `cache::keep`: others in each layer and KV head, with all that may not go.
template <class Cache>
std::vector<int> random_places(const Cache& owner, kvilt::sequence s, kvilt::idx count, dice& die) {
  const kvilt::position_range may_go = owner.evictable(s);
  const kvilt::idx all = owner.kept(s);
  std::vector<int> places;
  for (int list = 0; list < owner.shape().layers * owner.shape().kv_heads; ++list) {
    std::vector<int> one;
    for (int i = 0; i < all; ++i)
      if (i >= may_go.first && i < may_go.last) one.push_back(i);
    while (kvilt::idx(one.size()) > count - (all - (may_go.last - may_go.first)))
      one.erase(one.begin() + die.below(int(one.size())));
    for (int i = 0; i < all; ++i)
      if (i < may_go.first || i >= may_go.last) one.push_back(i);
    std::sort(one.begin(), one.end());
    places.insert(places.end(), one.begin(), one.end());
  }
  return places;
}

}  // namespace support
