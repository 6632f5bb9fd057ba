// expect: kvilt: to be owned by a cache a layout needs `int page_rows\(layout_request\) const`
#include <kvilt/kvilt.hpp>

// A user's layout that views take and an owner cannot size.

struct unsized {
  static constexpr int min_run = 1;
  kvilt::place locate(int sequence, int, kvilt::idx slot) const { return {sequence, int(slot), 1}; }
#ifdef KVILT_COMPILE_FAIL_CONTROL
  int page_rows(kvilt::layout_request) const {
    return 16;
  }
  kvilt::idx pages(kvilt::layout_request) const {
    return 16;
  }
  unsized bind(kvilt::layout_request) const {
    return {};
  }
#endif
};

using kv = kvilt::policy<unsized, kvilt::fp16<64>>;
kvilt::budget run() {
  return kvilt::plan_bytes(kv(), {.layers = 1, .kv_heads = 1});
}
