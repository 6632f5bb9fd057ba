#pragma once

#include <kvilt/layout/layout.hpp>

namespace kvilt::inline KVILT_ABI {

/// Each sequence has one page of `capacity` rows.
struct contiguous {
  static constexpr int min_run = 1;  // a place's run says more
  static constexpr const char* name() { return "contiguous"; }

  idx capacity = 0;

  KVILT_HD constexpr place locate(int sequence, int, idx slot) const {
    return {sequence, int(slot), int(smaller(capacity - slot, idx(1) << 30))};
  }

  KVILT_HD constexpr idx slots() const { return capacity; }

  constexpr int page_rows(layout_request r) const { return int(larger(r.slots, 1)); }
  constexpr idx pages(layout_request r) const { return r.sequences; }
  constexpr contiguous bind(layout_request r) const { return {page_rows(r)}; }
};

static_assert(fixed_layout<contiguous>);

}  // namespace kvilt::inline KVILT_ABI
