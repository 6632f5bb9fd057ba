#pragma once

#include <kvilt/pages/attached_pages.hpp>

#include <span>
#include <vector>

namespace kvilt::inline KVILT_ABI::detail {

/// A group of a `page_manager` besides its first: attached pages, and the table of each sequence. Tables are as long as
/// those of the first group; what a window has left behind is -1. Lengths are in tokens, places in pages.
class attached_group {
 public:
  attached_group(const page_group& g, int page_tokens, idx named_pages) : pages_(g, page_tokens, named_pages) {}

  const attached_pages& pages() const { return pages_; }
  std::span<const page_id> table_of(int slot) const { return at(slot).pages; }
  idx held_pages() const { return held_; }
  void complete(completion done) { pages_.complete(done); }
  void detach(page_id named) { pages_.detach(named); }
  void add_slot() { tables_.emplace_back(); }

  /// An empty table becomes that of a prefix whose pages have these names.
  void hold_prefix(int slot, std::span<const page_id> named) {
    table& t = at(slot);
    t.passed = needed().first(idx(named.size()) * needed().page_tokens());
    pin(named, t.pages);
    for (const page_id p : t.pages) held_ += p >= 0;
  }
  /// An empty table becomes the first `kept` pages of another.
  void share(int from, int to, idx kept) {
    at(to).passed = at(from).passed;
    at(to).pages.assign(at(from).pages.begin(), at(from).pages.begin() + kept);
    for (const page_id p : at(to).pages) {
      if (p >= 0) pages_.hold(p);
      held_ += p >= 0;
    }
  }

  bool shared(int slot, idx place) const {
    const page_id p = at(slot).pages[std::size_t(place)];
    return pages_.pool().holders(p) > 1 || pages_.pool().named(p);
  }
  /// A page of its own for one that is shared, of which `rows` are to be copied; `group` is this one's number.
  void own(int slot, idx place, int rows, int group, completion after, std::vector<page_move>& moves) {
    if (!shared(slot, place)) return;
    page_id& p = at(slot).pages[std::size_t(place)];
    page_move move{group, p, -1, rows};
    pages_.take({&move.to, 1});
    pages_.give(p, after);
    p = move.to;
    moves.push_back(move);
  }
  void extend(int slot, idx fresh) {
    table& t = at(slot);
    t.pages.resize(t.pages.size() + std::size_t(fresh));
    pages_.take(std::span(t.pages).last(std::size_t(fresh)));
    held_ += fresh;
  }
  /// The first page that a query at `length` sees after the sinks, where pages before it are not given back; or 0.
  idx leaves(int slot, idx length) const {
    const idx first = needed().first(length);
    return first > at(slot).passed ? first : 0;
  }
  /// Gives back what no query from `length` on sees.
  void pass(int slot, idx length, completion after) {
    table& t = at(slot);
    for (const idx first = needed().first(length); t.passed < first; ++t.passed)
      give(t.pages[std::size_t(t.passed)], after);
  }
  /// Whether a sequence may be cut to `length`: what its window shows then is not given back.
  bool shows(int slot, idx length) const {
    const idx kept = ceil_div(length, needed().page_tokens());
    return smaller(at(slot).passed, kept) <= needed().first(length);
  }
  void cut(int slot, idx length, completion after) {
    table& t = at(slot);
    const std::size_t kept = std::size_t(ceil_div(length, needed().page_tokens()));
    for (; t.pages.size() > kept; t.pages.pop_back()) give(t.pages.back(), after);
    t.passed = smaller(t.passed, needed().first(length));
  }
  /// Attaches a sequence's page to its namesake. Returns whether another one was there and is held now.
  bool attach(int slot, idx place, page_id named, completion after) {
    page_id& p = at(slot).pages[std::size_t(place)];
    const page_id own = p;
    if (own >= 0) p = pages_.attach(named, own, after);
    return p != own;
  }

  /// Holds what is needed to go on from a prefix whose pages have these names: ids, -1 where none is.
  void pin(std::span<const page_id> named, std::vector<page_id>& pages) {
    const idx length = idx(named.size()) * needed().page_tokens();
    for (idx i = 0; i < idx(named.size()); ++i) {
      const page_id p = needed().needs(i, length) ? pages_.at(named[std::size_t(i)]) : -1;
      if (p >= 0) pages_.hold(p);
      pages.push_back(p);
    }
  }
  void unpin(std::span<const page_id> pages, completion after) {
    for (std::size_t i = pages.size(); i-- > 0;)
      if (pages[i] >= 0) pages_.give(pages[i], after);
  }

  /// Holds a page for the time of copying from it.
  void hold(page_id p) { pages_.hold(p); }
  void release(page_id p, completion after) { pages_.give(p, after); }

 private:
  struct table {
    std::vector<page_id> pages;
    idx passed = 0;  // pages before this one, and after the sinks, are given back
  };
  table& at(int slot) { return tables_[std::size_t(slot)]; }
  const table& at(int slot) const { return tables_[std::size_t(slot)]; }
  const group_span& needed() const { return pages_.needed(); }
  void give(page_id& p, completion after) {
    if (p < 0) return;
    pages_.give(p, after);
    p = -1;
    --held_;
  }

  attached_pages pages_;
  std::vector<table> tables_;
  idx held_ = 0;  // in all tables
};

/// How many pages of a prefix can be gone on from in all groups: a shorter prefix may need other pages of a window.
inline idx usable(const std::vector<attached_group>& groups, std::span<const page_id> named) {
  idx pages = idx(named.size()), before = -1;
  while (std::exchange(before, pages) != pages)
    for (const attached_group& g : groups) pages = g.pages().usable(named.first(std::size_t(pages)));
  return pages;
}
inline idx least_available(const std::vector<attached_group>& groups, idx pages) {
  for (const attached_group& g : groups) pages = smaller(pages, g.pages().available());
  return pages;
}

}  // namespace kvilt::inline KVILT_ABI::detail
