#pragma once

#include "support/random.hpp"

#include <kvilt/kvilt.hpp>

#include <algorithm>
#include <vector>

namespace support {

// `count` of `all` rows, ascending, with those that may not go.
inline std::vector<int> some_of(kvilt::idx all, kvilt::position_range may_go, kvilt::idx count, dice& die) {
  std::vector<int> places;
  for (int i = 0; i < all; ++i)
    if (i >= may_go.first && i < may_go.last) places.push_back(i);
  while (kvilt::idx(places.size()) > count - (all - (may_go.last - may_go.first)))
    places.erase(places.begin() + die.below(int(places.size())));
  for (int i = 0; i < all; ++i)
    if (i < may_go.first || i >= may_go.last) places.push_back(i);
  std::sort(places.begin(), places.end());
  return places;
}

// Which `count` rows of a sequence stay, for `cache::keep`: others in each layer and KV head, with all that may not go.
template <class Cache>
std::vector<int> random_places(const Cache& owner, kvilt::sequence s, kvilt::idx count, dice& die) {
  std::vector<int> places;
  for (int list = 0; list < owner.shape().layers * owner.shape().kv_heads; ++list) {
    const std::vector<int> one = some_of(owner.kept(s), owner.evictable(s), count, die);
    places.insert(places.end(), one.begin(), one.end());
  }
  return places;
}

}  // namespace support
