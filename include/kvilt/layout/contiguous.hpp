#pragma once

#include <kvilt/layout/layout.hpp>

namespace kvilt::inline v0 {

/// Each sequence has one page of `capacity` rows.
struct contiguous {
  static constexpr int min_run = 1 << 20;
  static constexpr const char* name() { return "contiguous"; }

  idx capacity = 0;

  KVILT_HD constexpr place locate(int sequence, int, idx slot) const {
    return {sequence, int(slot), int(capacity - slot)};
  }

  constexpr int page_rows(layout_request r) const { return int(larger(r.slots, 1)); }
  constexpr idx pages(layout_request r) const { return r.sequences; }
  constexpr contiguous bind(layout_request r) const { return {page_rows(r)}; }
};

static_assert(fixed_layout<contiguous>);

}  // namespace kvilt::inline v0
