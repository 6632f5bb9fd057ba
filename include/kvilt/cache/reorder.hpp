#pragma once

#include <kvilt/core/types.hpp>

#include <cstddef>
#include <span>
#include <unordered_set>
#include <vector>

namespace kvilt::inline KVILT_ABI::detail {

/// A page that is copied whole, in every layer.
struct copied_page {
  page_id from = -1;  // -1: there is nothing to copy
  page_id to = -1;
};

/// What one row of a view's tables gets from another: of parts without pages all that the lengths name. Pages are the
/// table's affair.
struct sequence_copy {
  int from = 0;
  int to = 0;
  lengths n;
};

/// How many of the first copies may be made at the same time, as if one after another.
inline std::size_t at_once(std::span<const copied_page> copies) {
  std::unordered_set<page_id> read, written;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const copied_page& c = copies[i];
    if (read.contains(c.to) || written.contains(c.from) || written.contains(c.to)) return i;
    read.insert(c.from);
    written.insert(c.to);
  }
  return copies.size();
}

/// What a reorder comes to: where each sequence is afterwards, and what is copied there.
struct new_order {
  std::vector<int> rows;  // of the view's tables
  std::vector<sequence_copy> copies;
};

/// Where the sequences of a beam go so that sequence i continues sequence `parents[i]`: to the place that sequence
/// `result[i]` had. One child of each parent takes the parent's own place, itself if it is one; the others get the
/// places of those that have no child, and their content has to be copied there: `result[i] != parents[i]`. So nothing
/// is copied from a place that is written. parents: [n] of 0 to n - 1.
inline std::vector<int> heirs(std::span<const int> parents) {
  const std::size_t n = parents.size();
  std::vector<int> places(n, -1);
  std::vector<bool> taken(n, false);
  const auto settle = [&](std::size_t child, int place) {
    places[child] = place;
    taken[std::size_t(place)] = true;
  };
  for (std::size_t i = 0; i < n; ++i)
    if (parents[i] == int(i)) settle(i, int(i));
  for (std::size_t i = 0; i < n; ++i)
    if (places[i] < 0 && !taken[std::size_t(parents[i])]) settle(i, parents[i]);
  int spare = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (places[i] >= 0) continue;
    while (taken[std::size_t(spare)]) ++spare;
    settle(i, spare);
  }
  return places;
}

/// The same for sequences in these rows of a view's tables; the copies' lengths are not known here.
inline new_order order_of(std::span<const int> rows, std::span<const int> parents) {
  const std::vector<int> places = heirs(parents);
  new_order order;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const int from = rows[std::size_t(parents[i])], to = rows[std::size_t(places[i])];
    order.rows.push_back(to);
    if (from != to) order.copies.push_back({from, to, {}});
  }
  return order;
}

}  // namespace kvilt::inline KVILT_ABI::detail
