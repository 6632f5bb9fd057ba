#pragma once

#include <kvilt/pages/eviction.hpp>
#include <kvilt/pages/id_lists.hpp>

// A policy as bad as can be: what became idle last goes first, and that is the beginning of a prefix.
class parents_first {
 public:
  explicit parents_first(kvilt::idx pages) : order_(pages, 1) {}

  kvilt::idx pages() const { return order_.ids(); }
  void stored(kvilt::page_id, bool) {}
  void hit(kvilt::page_id) {}
  void given(kvilt::page_id, kvilt::page_id, const kvilt::page_use&) {}
  void idle(kvilt::page_id p) { order_.push_back(0, p); }
  void busy(kvilt::page_id p) { order_.remove(p); }
  kvilt::page_id pop() {
    const kvilt::page_id p = order_.last(0);
    if (p >= 0) order_.remove(p);
    return p;
  }

 private:
  kvilt::detail::id_lists order_;
};
