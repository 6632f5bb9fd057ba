#pragma once

#include <kvilt/layout/layout.hpp>

namespace kvilt::inline KVILT_ABI {

/// Pages of `page_rows` rows whose ids follow each other sequence by sequence, in one list: those of sequence s are
/// `pages[first[s]]` to `pages[first[s + 1] - 1]`.
struct paged_list {
  static constexpr int min_run = 1;
  static constexpr const char* name() { return "paged_list"; }

  const page_id* pages = nullptr;  // [first[sequences]]
  const int* first = nullptr;      // [sequences + 1]
  fast_divisor page_rows;

  KVILT_HD constexpr place locate(int sequence, int, idx slot) const {
    const idx page = page_rows.quotient(slot);
    const int row = int(slot - page * page_rows.value());
    return {pages[first[sequence] + page], row, page_rows.value() - row};
  }

  KVILT_HD constexpr bool has_table() const { return pages != nullptr && first != nullptr; }
  KVILT_HD constexpr idx slots(int sequence) const {
    return idx(first[sequence + 1] - first[sequence]) * page_rows.value();
  }
};

static_assert(kv_layout<paged_list>);

}  // namespace kvilt::inline KVILT_ABI
