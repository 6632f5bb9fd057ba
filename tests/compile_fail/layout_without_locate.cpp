// expect: kvilt: a layout needs `kvilt::place locate\(int sequence, int head, kvilt::idx slot\) const`
#include <kvilt/kvilt.hpp>

// A user's layout that says nothing about where slots lie.

struct nowhere {
  static constexpr int min_run = 1;
#ifdef KVILT_COMPILE_FAIL_CONTROL
  kvilt::place locate(int sequence, int, kvilt::idx slot) const {
    return {sequence, int(slot), 1};
  }
#endif
  int page_rows(kvilt::layout_request) const {
    return 16;
  }
  kvilt::idx pages(kvilt::layout_request) const {
    return 16;
  }
  nowhere bind(kvilt::layout_request) const {
    return {};
  }
};

using kv = kvilt::policy<nowhere, kvilt::fp16<64>>;
kvilt::budget run() {
  return kvilt::plan_bytes(kv(), {.layers = 1, .kv_heads = 1});
}
