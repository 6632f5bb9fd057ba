#pragma once

#include <kvilt/pages/eviction.hpp>
#include <kvilt/pages/id_lists.hpp>

namespace kvilt::inline KVILT_ABI {

/// The least recently used page goes first. 8 bytes a page.
class lru {
 public:
  explicit lru(idx pages) : order_(pages, 1) {}

  idx pages() const { return order_.ids(); }
  void stored(page_id, bool) {}
  void hit(page_id) {}
  void given(page_id, page_id, const page_use&) {}
  void idle(page_id p) { order_.push_back(0, p); }
  void busy(page_id p) { order_.remove(p); }
  page_id pop() {
    const page_id p = order_.first(0);
    if (p >= 0) order_.remove(p);
    return p;
  }

 private:
  detail::id_lists order_;
};
static_assert(eviction_policy<lru>);

}  // namespace kvilt::inline KVILT_ABI
