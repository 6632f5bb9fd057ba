#pragma once

#include <kvilt/pages/page_pool.hpp>
#include <kvilt/pages/prefix_event.hpp>

#include <vector>

namespace kvilt::inline KVILT_ABI {

/// One group at one moment.
struct group_counters {
  page_counts pages;
  idx held_pages = 0;  // in all tables together; a shared page counts for each that holds it
  idx empty_rows = 0;  // in these, of pages that are reserved and not filled

  /// Of the pool, what is used.
  double utilisation() const { return pages.total ? double(pages.used) / double(pages.total) : 0; }
  /// Of the rows that sequences hold, what is empty.
  double fragmentation(int page_tokens) const {
    return held_pages ? double(empty_rows) / double(held_pages * page_tokens) : 0;
  }
  friend bool operator==(const group_counters&, const group_counters&) = default;
};

/// All that a manager counts, at one moment; what is not about the moment only grows.
struct manager_counters {
  std::vector<group_counters> groups;
  prefix_statistics prefixes;
  idx open_sequences = 0;
  idx tokens = 0;  // in open sequences
  idx opened = 0;
  idx closed = 0;  // these and the next two: how sequences ended
  idx discarded = 0;
  idx preempted = 0;
  idx forked = 0;
  idx appended = 0;  // tokens
  idx moves = 0;     // pages copied
  idx replaced = 0;  // pages that another sequence had stored already
};

}  // namespace kvilt::inline KVILT_ABI
