#pragma once

#include <kvilt/cache/copy.hpp>
#include <kvilt/cache/listed.hpp>
#include <kvilt/core/error.hpp>

#include <span>

namespace kvilt::inline KVILT_ABI::detail {

/// Which rows of a sequence are to stay, in each of its layers' heads.
struct kept_places {
  std::span<const int> places;  // [lists][count], ascending
  idx lists = 0;                // layers x KV heads
  idx before = 0;               // rows that there are
  position_range body;          // places of those that may go

  idx count() const { return idx(places.size()) / lists; }
  idx sinks() const { return body.first; }
  idx tail() const { return before - body.last; }
  const int* list(idx i) const { return places.data() + i * count(); }
  /// The slot in which row `i` of the body is now.
  idx slot(idx list_number, idx i) const { return list(list_number)[sinks() + i] - sinks(); }
};

/// Ascending lists of equal length, which leave out none of the rows in 16 bit.
inline void check_places(int sequence, int heads, const kept_places& k) {
  expects(idx(k.places.size()) % k.lists == 0, "sequence ", sequence, " keeps ", k.places.size(), " rows in ",
          k.lists / heads, " layers of ", heads, " KV heads; the same number in each is needed");
  const idx count = k.count();
  expects(count <= k.before && count >= k.sinks() + k.tail(), "sequence ", sequence, " keeps ", count, " of ", k.before,
          " rows; ", k.sinks() + k.tail(), " of them are in 16 bit and stay");
  for (idx list = 0; list < k.lists; ++list) {
    const int* const places = k.list(list);
    for (idx i = 0; i < count; ++i) {
      expects(places[i] >= (i > 0 ? places[i - 1] + 1 : 0) &&
                      places[i]<k.before, "sequence ", sequence, " keeps row ", places[i], " after ", i> 0
                  ? places[i - 1]
                  : -1,
              " in head ", list % heads, " of layer ", list / heads, "; rows of ", k.before, " going up are needed");
      const bool sink = i < k.sinks(), in_tail = i >= count - k.tail();
      expects((!sink || places[i] == i) && (!in_tail || places[i] == k.before - (count - i)), "sequence ", sequence,
              " keeps row ", places[i], " as number ", i, " of ", count, " in head ", list % heads, " of layer ",
              list / heads, "; the first ", k.sinks(), " and the last ", k.tail(), " rows are in 16 bit and stay");
    }
  }
}

/// What becomes of a body.
struct eviction {
  idx rows = 0;        // afterwards
  idx unmoved = 0;     // of these, the first ones that are where they were in every list
  listed_rows listed;  // afterwards

  eviction(const kept_places& k, listed_rows had) : rows(k.count() - k.sinks() - k.tail()), had_(had) {
    const idx before = k.body.last - k.body.first;
    idx newest = smaller(rows, before - had.count);  // rows that follow on each other in the text, up to the last
    unmoved = rows;
    for (idx list = 0; list < k.lists; ++list) {
      idx i = 0;
      while (i < unmoved && k.slot(list, i) == i) ++i;
      unmoved = i;
      for (i = 0; i < newest && k.slot(list, rows - 1 - i) == before - 1 - i;) ++i;
      newest = i;
    }
    listed = {std::int32_t(rows - newest), std::int32_t(before + had.evicted - rows)};
  }

  /// Moves the rows of one head up, if the segment is the body. NOTE: lists go up, so a row is read before another takes
  /// its place, and so is its position. What goes on record of rows that do not move, on pages that others may have too,
  /// is as true of theirs.
  template <kv_segment Segment>
  void compact(const Segment& seg, const kept_places& k, int row, int head, idx list) const {
    if constexpr (requires { seg.retention.record(place(), head, idx()); })
      for (idx i = smaller(unmoved, had_.count); i < rows; ++i) {
        const idx slot = k.slot(list, i), position = seg.retention.position_of(row, head, slot);
        const place to = seg.layout.locate(row, head, i);
        if (slot != i) copy_row(seg, seg.layout.locate(row, head, slot), seg, to, head);
        if (i < listed.count) seg.retention.record(to, head, position);
      }
  }

 private:
  listed_rows had_;
};

}  // namespace kvilt::inline KVILT_ABI::detail
