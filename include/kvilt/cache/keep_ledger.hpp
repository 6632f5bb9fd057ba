#pragma once

#include <kvilt/cache/keep.hpp>
#include <kvilt/cache/prefixes.hpp>

#include <span>
#include <vector>

namespace kvilt::inline KVILT_ABI::detail {

/// What a `keep` comes to.
struct keep_plan {
  std::vector<kept_places> heads;   // [layers][kv heads]
  std::vector<eviction> evictions;  // by page table of the sequence
  std::vector<idx> ends;            // rows of each whose pages are to be the sequence's own

  const eviction& of(idx list) const { return evictions[std::size_t(list) * evictions.size() / heads.size()]; }
};

/// What an owner knows of rows that stay where others go: which, and on whose pages. Bytes are the cache's affair.
template <class Policy, memory_space Space>
class keep_ledger : public prefix_ledger<Policy, Space> {
  using book = prefix_ledger<Policy, Space>;

 public:
  /// The places of the rows that `keep` may leave out in one layer's KV head: those that are not in 16 bit. Without pages
  /// by head they are the same in all.
  position_range evictable(sequence s, int layer = 0, int head = 0) const {
    const idx sinks = smaller(Policy::sinks, book::length(s));
    return {sinks, sinks + book::rows_of(book::table_of(s, layer, head))};
  }

 protected:
  using book::book;
  using book::pages_, book::plan_, book::shape_;
  template <memory_space, class...>
  friend class kvilt::basic_cache_set;

  int all_heads() const { return shape_.layers * shape_.kv_heads; }

  /// Checks lists of equal length; nothing changes.
  keep_plan plan_keep(sequence s, std::span<const int> places) const {
    book::check_idle("keep");
    const idx rows = idx(places.size()), lists = all_heads();
    expects(rows % lists == 0, "sequence ", s.slot, " keeps ", rows, " rows in ", shape_.layers, " layers of ",
            shape_.kv_heads, " KV heads; the same number in each is needed");
    return plan_keep(s, places, std::vector<int>(std::size_t(lists), int(rows / lists)));
  }
  /// Checks lists of `sizes` rows.
  keep_plan plan_keep(sequence s, std::span<const int> places, std::span<const int> sizes) const {
    book::check_idle("keep");
    const int first = book::first_table(book::find(s).row), heads = shape_.kv_heads;
    check_sizes(s.slot, all_heads(), heads, idx(places.size()), sizes);
    keep_plan plan;
    for (int list = 0; list < all_heads(); ++list) {
      const int layer = list / heads, head = list % heads;
      const auto size = std::size_t(sizes[std::size_t(list)]);
      plan.heads.push_back({places.first(size), book::kept(s, layer, head), evictable(s, layer, head)});
      check_places(s.slot, layer, head, plan.heads.back());
      places = places.subspan(size);
    }
    idx shared = 0;
    const auto each = plan.heads.size() / std::size_t(book::tables());  // lists of a table
    for (std::size_t i = 0; i < plan.heads.size() / each; ++i) {
      const int t = first + int(i);
      const std::span<const kept_places> of = std::span(plan.heads).subspan(i * each, each);
      const eviction& e = plan.evictions.emplace_back(of, book::lists()[t]);
      // NOTE: the pages that a 16-bit tail goes to next stay reserved, so they are to be its own as well.
      plan.ends.push_back(larger(e.rows, plan_.body_rows(of[0].count())));
      shared += book::shared_pages(t, e.unmoved, plan.ends.back());
    }
    expects<out_of_pages>(shared <= pages_.free(), "sequence ", s.slot, " moves rows on ", shared,
                          " pages that others have too; ", pages_.free(), " of ", pages_.total(), " are free");
    return plan;
  }
  /// Gives the sequence copies of the pages on which its rows move; they are owed.
  void own_moved(sequence s, const keep_plan& plan) {
    std::size_t i = 0;
    book::each_table(book::find(s).row, [&](int t) {
      book::own_pages(t, plan.evictions[i].unmoved, plan.ends[i]);
      ++i;
    });
  }
  /// The rows have moved.
  void moved(sequence s, const keep_plan& plan) {
    const eviction* e = plan.evictions.data();
    book::each_table(book::find(s).row, [&](int t) { book::lists()[t] = (e++)->listed; });
    book::give_spare_pages(book::find(s).row);
  }
};

}  // namespace kvilt::inline KVILT_ABI::detail
