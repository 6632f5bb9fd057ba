#pragma once

#include <kvilt/pages/aged_lfu.hpp>
#include <kvilt/pages/page_pool.hpp>
#include <kvilt/pages/prefix_event.hpp>
#include <kvilt/pages/prefix_index.hpp>

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// What an index has of a prompt; nothing is held yet.
struct prefix_hit {
  prefix_end end;
  idx pages = 0;          // full pages found
  prefix_tail tail = {};  // what follows on them in a page that holds other tokens besides
};

/// A pool whose pages keep what they hold when nobody uses them: full pages are named by the prefix that they end, so
/// that a prompt that begins with it finds them, until free pages run out and the policy says which is to go. Only what
/// nobody holds is evicted, and no page before all that go on from it. A page is held together with all before it in its
/// prefix, by whoever holds it, and given back with them: so every cached page can be taken.
template <eviction_policy Eviction = aged_lfu, prefix_hash Hash = token_hash>
class page_cache {
  using index_type = prefix_index<Hash>;

 public:
  page_cache(idx pages, int page_tokens, Eviction eviction, Hash hash = Hash(), page_hook on_page = {},
             prefix_hook on_prefix = {})
      : pool_(pages, on_page),
        index_(pages, checked(page_tokens), hash),
        eviction_(checked(std::move(eviction), pages)),
        waits_(std::size_t(pages)),
        lately_evicted_(std::size_t(pages / 2 + 1)),
        root_of_(std::size_t(on_prefix.call ? pages : 0)),
        hook_(on_prefix) {}
  page_cache(idx pages, int page_tokens) : page_cache(pages, page_tokens, Eviction(pages)) {}

  int page_tokens() const { return index_.page_tokens(); }
  const page_pool& pool() const { return pool_; }
  const index_type& index() const { return index_; }
  Eviction& eviction() { return eviction_; }
  /// Pages that can be taken.
  idx available() const { return pool_.free() + pool_.cached(); }
  const prefix_statistics& statistics() const { return statistics_; }

  /// The empty prefix under extra keys; each is closed once.
  prefix_end open_root(std::span<const std::uint64_t> keys) { return index_.open_root(keys); }
  void close_root(const prefix_end& end) { index_.close_root(end.root); }
  /// To be closed once more.
  void share_root(const prefix_end& end) { index_.share_root(end.root); }
  /// Where the prefix ends that `page` ends, under the same root as `like`; -1: the empty one.
  prefix_end end_at(page_id page, const prefix_end& like) const {
    return {page, like.root, page >= 0 ? index_.name(page) : index_.root_name(like.root)};
  }

  /// The longest prefix of `tokens` after `end` that is here: ids of its full pages are appended to `pages`, and of the
  /// tokens after them what one more page has.
  prefix_hit find(const prefix_end& end, std::span<const token_id> tokens, std::vector<page_id>& pages) const {
    prefix_hit hit{end};
    index_.find(hit.end, tokens, [&](page_id p) {
      pages.push_back(p);
      ++hit.pages;
    });
    hit.tail = index_.find_tail(hit.end, tokens.subspan(std::size_t(hit.pages * page_tokens())));
    return hit;
  }
  /// Counts what a prompt of `asked` tokens has found, `copied` of them in the tail; `lost` more pages were no use,
  /// because what belongs to them elsewhere was evicted.
  void count(const prefix_hit& hit, idx asked, idx copied, idx lost = 0) {
    statistics_.asked += asked;
    statistics_.hit += hit.pages * page_tokens();
    statistics_.copied += copied;
    statistics_.missed_granularity += hit.tail.rows - copied;
    statistics_.missed_capacity += lost * page_tokens();
  }

  /// One holder more of pages with a name, a prefix whole; `hit`: for a prompt that found them.
  void hold(std::span<const page_id> prefix, bool hit) {
    for (const page_id p : prefix) {
      if (pool_.state(p) == page_state::cached) leave_order(p);
      pool_.hold(p);
      if (hit && pool_.named(p)) eviction_.hit(p);
    }
  }

  /// Pages with one holder and no name. Evicts where too few are free; `lost(page)` for each page that loses its name.
  /// Throws `out_of_pages`, and has taken none then.
  template <class Lost>
  void take(std::span<page_id> pages, Lost&& lost) {
    detail::expects<out_of_pages>(make_room(idx(pages.size()), lost), pages.size(), " pages are asked for; ",
                                  pool_.free(), " are free and ", pool_.cached(), " cached of ", pool_.total());
    pool_.take(pages);
  }
  void take(std::span<page_id> pages) {
    take(pages, [](page_id) {});
  }

  /// One page that is free already, after `make_room`.
  page_id take_free() { return pool_.take(); }

  /// Evicts until `pages` are free. Returns whether they are; false without an eviction where they are not available.
  template <class Lost>
  bool make_room(idx pages, Lost&& lost) {
    const idx missing = pages - pool_.free();
    if (missing <= 0) [[likely]]
      return true;
    if (missing > pool_.cached()) return false;
    evict(missing, lost);
    return pages <= pool_.free();
  }

  /// One holder less of each of `pages`, the last first; they follow on each other, the first is number `place` of its
  /// prefix. Work up to `after` may still touch them.
  void give(std::span<const page_id> pages, int priority = 0, completion after = 0, idx place = 0) {
    page_id child = -1;
    constexpr std::size_t ahead = 16;
    for (std::size_t i = pages.size(); i-- > 0;) {
      if (i >= ahead) pool_.prefetch(pages[i - ahead]);
      give_one(pages[i], place + idx(i), priority, after, child);
    }
  }
  /// All work up to `done` is complete.
  void complete(completion done) {
    pool_.complete(done, [&](page_id p) { eviction_.idle(p); });
  }

  /// A page's tokens, to be written while it has no name.
  token_id* tokens(page_id p) { return index_.tokens(p); }
  const token_id* tokens(page_id p) const { return index_.tokens(p); }
  /// The extra keys of a prefix.
  std::span<const std::uint64_t> keys(const prefix_end& end) const { return index_.keys(end.root); }
  void write_tokens(page_id p, idx row, const token_id* from, idx count) {
    constexpr std::size_t usual = 16;
    if (count == idx(usual))
      std::memcpy(tokens(p) + row, from, usual * sizeof(token_id));  // a constant: no call
    else
      std::memcpy(tokens(p) + row, from, std::size_t(count) * sizeof(token_id));
  }

  /// The token number `at` of all pages is soon written.
  void prefetch_tokens(idx at) { __builtin_prefetch(index_.tokens(0) + at, 1); }

  /// Names full pages that follow on `end`, which goes on over them; the caller alone holds them. Where another page is
  /// named so already, it is held and put in the place of the caller's, which is given back. Returns how many.
  idx store(prefix_end& end, std::span<page_id> pages, completion after = 0) {
    typename index_type::batch_names names;
    idx replaced = 0;
    for (std::size_t first = 0; first < pages.size(); first += index_type::batch) {
      const auto some = pages.subspan(first, std::size_t(smaller(index_type::batch, idx(pages.size() - first))));
      index_.name(end, some, names);
      replaced += store(end, some, names, after);
    }
    return replaced;
  }
  /// The same for as many pages as are named at once (`prefix_index::name`).
  idx store(prefix_end& end, std::span<page_id> pages, const typename index_type::batch_names& names,
            completion after) {
    idx replaced = 0;
    std::size_t at = 0;
    index_.insert(
        end, pages, names,
        [&](page_id p, const prefix_end& before) {
          enter(p, before, returns(index_.name(p)));
          if (hook_.call) tell(prefix_event::kind::stored, p, before.page, before.name);
          ++at;
        },
        [&](page_id there, page_id p) {
          hold({&there, 1}, false);
          pool_.give(p, after);
          pages[at++] = there;
          ++replaced;
        });
    return replaced;
  }
  /// Names the first `rows` tokens of a page that is not full; nothing is written into it from then on. Returns whether it
  /// is named: not where a page after `end` has these tokens already.
  bool store_tail(const prefix_end& end, page_id p, int rows) {
    if (index_.find_tail(end, {index_.tokens(p), std::size_t(rows)}).rows == rows) return false;
    index_.insert_tail(end, p, rows);
    enter(p, end, false);
    return true;
  }

  /// One holder more of a prefix that is here, so that it is not evicted; until `unpin`.
  void pin(const prefix_end& end) {
    for (page_id p = end.page; p >= 0; p = index_.before(p)) hold({&p, 1}, false);
  }
  void unpin(const prefix_end& end, int priority = 0) {
    idx depth = 0;
    for (page_id p = end.page; p >= 0; p = index_.before(p)) ++depth;
    for (page_id p = end.page, child = -1; p >= 0;) {
      const page_id before = index_.before(p);
      give_one(p, --depth, priority, 0, child);
      p = before;
    }
  }

  /// Frees `pages` cached pages, or all there are. Takes as long as pages are freed, and as pages of prefixes that were
  /// cut stand before them in the order; such a page is met once each time that it is given back.
  template <class Lost>
  void evict(idx pages, Lost&& lost) {
    pages = smaller(pages, pool_.cached());
    std::array<page_id, 32> victims;
    for (int n = -1; pages > 0 && n != 0;) {
      n = 0;
      while (n < smaller(pages, idx(victims.size())) && (victims[std::size_t(n)] = eviction_.pop()) >= 0)
        index_.prefetch_node(victims[std::size_t(n++)]);
      for (int i = 0; i < n; ++i) {
        index_.prefetch_erase(victims[std::size_t(i)]);
        __builtin_prefetch(&lately_evicted_[ghost_of(index_.name(victims[std::size_t(i)]))], 1);
      }
      for (int i = 0; i < n; ++i) pages -= drop(victims[std::size_t(i)], lost);
    }
  }
  void evict(idx pages) {
    evict(pages, [](page_id) {});
  }

 private:
  static Eviction checked(Eviction eviction, idx pages) {
    detail::expects(eviction.pages() >= pages, "a policy for ", eviction.pages(), " pages, of ", pages);
    return eviction;
  }
  static int checked(int page_tokens) {
    detail::expects(page_tokens > 0, "pages of ", page_tokens, " tokens");
    return page_tokens;
  }

  // `child`: the page after it, if it has a name; then this one.
  void give_one(page_id p, idx place, int priority, completion after, page_id& child) {
    if (pool_.named(p)) {
      eviction_.given(p, child, {place * page_tokens(), priority});
      child = p;
    }
    if (pool_.give(p, after) == page_state::cached) eviction_.idle(p);
  }

  // A page gets a name.
  void enter(page_id p, const prefix_end& before, bool returns) {
    pool_.name(p);
    eviction_.stored(p, returns);
    ++statistics_.stored_pages;
    statistics_.missed_capacity += returns ? page_tokens() : 0;
    if (hook_.call) root_of_[std::size_t(p)] = before.root;
  }
  void leave_order(page_id p) {
    if (waits_[std::size_t(p)])
      waits_[std::size_t(p)] = false;
    else
      eviction_.busy(p);
  }
  // A cached page loses its name and is free, unless prefixes go on from it: then it waits until the last of them goes.
  template <class Lost>
  bool drop(page_id p, Lost&& lost) {
    if (!index_.leaf(p)) {
      waits_[std::size_t(p)] = true;
      return false;
    }
    const page_id before = index_.before(p);
    if (index_.rows(p) == page_tokens()) {
      lately_evicted_[ghost_of(index_.name(p))] = print_of(index_.name(p));
      if (hook_.call) {
        const std::uint64_t name = before >= 0 ? index_.name(before) : index_.root_name(index_.root(p));
        tell(prefix_event::kind::removed, p, before, name);
      }
    }
    lost(p);
    index_.erase(p);
    pool_.forget(p);
    ++statistics_.evicted_pages;
    if (before >= 0 && waits_[std::size_t(before)] && index_.leaf(before)) {
      waits_[std::size_t(before)] = false;
      eviction_.idle(before);
    }
    return true;
  }
  void tell(prefix_event::kind what, page_id p, page_id page_before, std::uint64_t name_before) const {
    hook_.call(hook_.self, {what,
                            p,
                            index_.name(p),
                            name_before,
                            {index_.tokens(p), std::size_t(page_tokens())},
                            index_.keys(root_of_[std::size_t(p)]),
                            page_before});
  }

  // Names that were evicted: 16 bits of each, in a place that others may take. 0: none. NOTE: fewer bits would do harm:
  // what is taken for evicted by mistake stays longer than it should.
  std::size_t ghost_of(std::uint64_t name) const {
    return std::size_t((name & 0xffffffffu) * lately_evicted_.size() >> 32);
  }
  static std::uint16_t print_of(std::uint64_t name) { return std::uint16_t(name >> 48 | 1); }
  bool returns(std::uint64_t name) {
    std::uint16_t& ghost = lately_evicted_[ghost_of(name)];
    const bool was_here = ghost == print_of(name);
    ghost = was_here ? 0 : ghost;
    return was_here;
  }

  page_pool pool_;
  index_type index_;
  Eviction eviction_;
  std::vector<bool> waits_;                           // [pages]: cached, and out of the order until it is a leaf
  detail::page_array<std::uint16_t> lately_evicted_;  // [pages / 2]
  std::vector<int> root_of_;                          // [pages], where somebody hears of events
  prefix_hook hook_;
  prefix_statistics statistics_;
};

}  // namespace kvilt::inline KVILT_ABI
