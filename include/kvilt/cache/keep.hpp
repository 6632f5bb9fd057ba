#pragma once

#include <kvilt/cache/copy.hpp>
#include <kvilt/cache/listed.hpp>
#include <kvilt/core/error.hpp>

#include <span>

namespace kvilt::inline KVILT_ABI::detail {

/// Which rows of one layer's KV head are to stay.
struct kept_places {
  std::span<const int> places;  // ascending
  idx before = 0;               // rows that there are
  position_range body;          // places of those that may go

  idx count() const { return idx(places.size()); }
  idx sinks() const { return body.first; }
  idx tail() const { return before - body.last; }
  /// Rows of the body that stay.
  idx rows() const { return count() - sinks() - tail(); }
  /// The slot in which row `i` of the body is now.
  idx slot(idx i) const { return places[std::size_t(sinks() + i)] - sinks(); }
};

/// There is a size for each list, and all rows are in one.
inline void check_sizes(int sequence, idx lists, int heads, idx rows, std::span<const int> sizes) {
  expects(idx(sizes.size()) == lists, "sequence ", sequence, " keeps rows in ", sizes.size(), " heads; there are ",
          lists / heads, " layers of ", heads, " KV heads");
  idx all = 0;
  for (idx list = 0; list < lists; ++list) {
    expects(sizes[std::size_t(list)] >= 0, "sequence ", sequence, " keeps ", sizes[std::size_t(list)], " rows in head ",
            list % heads, " of layer ", list / heads);
    all += sizes[std::size_t(list)];
  }
  expects(all == rows, "sequence ", sequence, " keeps ", all, " rows in all heads together; ", rows, " are listed");
}

/// A list that goes up and leaves out none of the rows in 16 bit.
inline void check_places(int sequence, int layer, int head, const kept_places& k) {
  const idx count = k.count();
  expects(count <= k.before && count >= k.sinks() + k.tail(), "sequence ", sequence, " keeps ", count, " of ", k.before,
          " rows in head ", head, " of layer ", layer, "; ", k.sinks() + k.tail(), " of them are in 16 bit and stay");
  for (idx i = 0; i < count; ++i) {
    const int place = k.places[std::size_t(i)], last = i > 0 ? k.places[std::size_t(i - 1)] : -1;
    expects(place > last && place < k.before, "sequence ", sequence, " keeps row ", place, " after ", last, " in head ",
            head, " of layer ", layer, "; rows of ", k.before, " going up are needed");
    const bool sink = i < k.sinks(), in_tail = i >= count - k.tail();
    expects((!sink || place == i) && (!in_tail || place == k.before - (count - i)), "sequence ", sequence,
            " keeps row ", place, " as number ", i, " of ", count, " in head ", head, " of layer ", layer,
            "; the first ", k.sinks(), " and the last ", k.tail(), " rows are in 16 bit and stay");
  }
}

/// What becomes of the bodies of the heads that a page table is of: of all, which keep as many rows each, or of one.
struct eviction {
  idx rows = 0;        // of each afterwards
  idx unmoved = 0;     // of these, the first ones that are where they were in every list
  listed_rows listed;  // afterwards

  eviction(std::span<const kept_places> lists, listed_rows had) : rows(lists[0].rows()), had_(had) {
    const idx before = lists[0].body.last - lists[0].body.first;
    idx newest = smaller(rows, before - had.count);  // rows that follow on each other in the text, up to the last
    unmoved = rows;
    for (const kept_places& k : lists) {
      idx i = 0;
      while (i < unmoved && k.slot(i) == i) ++i;
      unmoved = i;
      for (i = 0; i < newest && k.slot(rows - 1 - i) == before - 1 - i;) ++i;
      newest = i;
    }
    listed = {std::int32_t(rows - newest), std::int32_t(before + had.evicted - rows)};
  }

  /// Moves the rows of one head up, if the segment is the body. NOTE: lists go up, so a row is read before another takes
  /// its place, and so is its position. What goes on record of rows that do not move, on pages that others may have too,
  /// is as true of theirs.
  template <kv_segment Segment>
  void compact(const Segment& seg, const kept_places& k, int row, int head) const {
    if constexpr (requires { seg.retention.record(place(), head, idx()); })
      for (idx i = smaller(unmoved, had_.count); i < rows; ++i) {
        const idx slot = k.slot(i), position = seg.retention.position_of(row, head, slot);
        const place to = seg.layout.locate(row, head, i);
        if (slot != i) copy_row(seg, seg.layout.locate(row, head, slot), seg, to, head);
        if (i < listed.count) seg.retention.record(to, head, position);
      }
  }

 private:
  listed_rows had_;
};

}  // namespace kvilt::inline KVILT_ABI::detail
