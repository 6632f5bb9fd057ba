#pragma once

#include <kvilt/pages/id_lists.hpp>
#include <kvilt/pages/page_group.hpp>

#include <span>
#include <utility>

namespace kvilt::inline KVILT_ABI::detail {

/// The pages of a group whose prefixes are named in another group: each is attached to the page there that has the same
/// tokens, and is found through it. Of those that nobody holds, the least recently used one is taken first, and its
/// namesake stays; what a namesake loses its name with is free too.
class attached_pages {
 public:
  attached_pages(const page_group& g, int page_tokens, idx named_pages)
      : span_(g, page_tokens),
        pool_(g.pages, g.hook),
        attached_(std::size_t(named_pages), -1),
        namesake_(std::size_t(g.pages), -1),
        order_(g.pages, 1) {}

  const group_span& needed() const { return span_; }
  const page_pool& pool() const { return pool_; }
  idx available() const { return pool_.free() + pool_.cached(); }
  /// The page with the tokens of `named`, or -1.
  page_id at(page_id named) const { return attached_[std::size_t(named)]; }

  /// How many pages of a prefix of these can be gone on from: all that a query after them sees are here.
  idx usable(std::span<const page_id> named) const {
    idx pages = idx(named.size());
    for (idx i = 0; i < smaller(span_.sinks(), pages); ++i)
      if (at(named[std::size_t(i)]) < 0) pages = i;
    // NOTE: what is missing ends the prefix before it, and that shorter prefix needs pages further left.
    for (idx i = pages; i-- > 0 && span_.needs(i, pages * page_tokens());)
      if (at(named[std::size_t(i)]) < 0) pages = i;
    return pages;
  }

  void hold(page_id p) {
    if (pool_.state(p) == page_state::cached) order_.remove(p);
    pool_.hold(p);
  }
  /// So many must be available.
  void take(std::span<page_id> pages) {
    while (idx(pages.size()) > pool_.free()) {
      const page_id p = order_.first(0);
      if (p < 0) break;
      detach(namesake_[std::size_t(p)]);
    }
    pool_.take(pages);
  }
  void give(page_id p, completion after) {
    if (pool_.give(p, after) == page_state::cached) order_.push_back(0, p);
  }
  void complete(completion done) {
    pool_.complete(done, [&](page_id p) { order_.push_back(0, p); });
  }

  /// Attaches a page in use, or where another is attached already, holds that and gives this one back. Returns which.
  page_id attach(page_id named, page_id p, completion after) {
    page_id& there = attached_[std::size_t(named)];
    if (there == p) return p;
    if (there >= 0) {
      hold(there);
      give(p, after);
      return there;
    }
    pool_.name(p);
    namesake_[std::size_t(p)] = named;
    return there = p;
  }
  void detach(page_id named) {
    const page_id p = std::exchange(attached_[std::size_t(named)], -1);
    if (p < 0) return;
    if (pool_.state(p) == page_state::cached) order_.remove(p);
    namesake_[std::size_t(p)] = -1;
    pool_.forget(p);
  }

 private:
  idx page_tokens() const { return span_.page_tokens(); }

  group_span span_;
  page_pool pool_;
  page_array<page_id> attached_;  // [pages of the group that names]
  page_array<page_id> namesake_;  // [pages]
  id_lists order_;
};

}  // namespace kvilt::inline KVILT_ABI::detail
