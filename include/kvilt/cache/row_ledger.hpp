#pragma once

#include <kvilt/cache/budget.hpp>
#include <kvilt/cache/holding.hpp>
#include <kvilt/cache/reorder.hpp>
#include <kvilt/cache/text_table.hpp>

#include <algorithm>
#include <vector>

namespace kvilt::inline KVILT_ABI::detail {

/// What an owner knows of each row of its views' tables: which tokens are there, and on which pages. Whose row it is and
/// what is asked of it is the `ledger`'s affair. A row has one page table, or by head one of each layer's heads: table t is
/// row t / tables', and what is listed is listed by table.
template <class Policy, memory_space Space>
class row_ledger {
 protected:
  static constexpr bool tabled = !fixed_layout<typename Policy::layout_type>;
  static constexpr bool slides = Policy::retention_type::slides;
  static constexpr bool evicts = evicts_tokens<typename Policy::retention_type>;
  static constexpr bool by_head = arrangement<Policy>::by_head;

  row_ledger(const Policy& policy, const arrangement<Policy>& plan, const cache_shape& shape, memory<Space> from)
      : policy_(policy),
        shape_(shape),
        plan_(plan),
        pages_(shape.sequences * plan_.tables, plan_.bytes.table_width, tabled ? plan_.body.pages : 0,
               shape.prefixes ? plan_.page_rows : 0, from),
        entries_(std::size_t(shape.sequences)),
        filled_(std::size_t(shape.sequences) * std::size_t(plan_.tables)),
        lists_(from, std::size_t(plan_.bytes.list_bytes)) {
    if constexpr (evicts) std::fill_n(lists(), filled_.size(), listed_rows{});
  }

  idx first_body_slot() const { return plan_.body_sinks; }
  entry& at(int row) { return entries_[std::size_t(row)]; }
  const entry& at(int row) const { return entries_[std::size_t(row)]; }

  int tables() const { return by_head ? plan_.tables : 1; }
  int first_table(int row) const { return row * tables(); }
  int row_of(int table) const { return table / tables(); }
  /// `body(table)` for each of a row's.
  template <class Body>
  void each_table(int row, Body&& body) const {
    for (int t = first_table(row); t < first_table(row + 1); ++t) body(t);
  }
  /// Entries of a table in use or given back, from the first on.
  idx& filled(int table) { return filled_[std::size_t(table)]; }
  idx filled(int table) const { return filled_[std::size_t(table)]; }

  /// What of each table's rows is listed, where tokens are evicted.
  listed_rows* lists() const { return reinterpret_cast<listed_rows*>(lists_.data()); }
  /// Tokens of a table that are there.
  idx live(int table) const { return at(row_of(table)).length - evicted(table); }
  /// The most of any of a row's.
  idx most_live(int row) const {
    idx most = 0;
    each_table(row, [&](int t) { most = larger(most, live(t)); });
    return most;
  }

  /// Rows that the body has of a sequence: steps write behind them.
  idx rows_of(int table) const {
    const entry& e = at(row_of(table));
    if constexpr (Policy::tail == 0) return larger(e.length - Policy::exact_sinks - evicted(table), 0);
    const bool in_sinks = Policy::exact_sinks == 0 && e.length < Policy::sinks;
    return in_sinks ? e.length : e.body - Policy::exact_sinks - evicted(table);
  }
  /// Table entries that `tokens` tokens take.
  idx pages_for(idx tokens) const { return pages_of_rows(plan_.body_rows(tokens)); }
  idx pages_of_rows(idx rows) const { return tabled && rows > 0 ? ceil_div(rows, plan_.page_rows) : 0; }
  /// Pages that no step writes any more.
  idx kept_pages(int table) const { return tabled ? rows_of(table) / plan_.page_rows : 0; }
  /// NOTE: pages behind that one are always its own.
  bool goes_on_in_shared(int table) const {
    const idx next = kept_pages(table);
    return tabled && next < filled(table) && pages_.shared(table, next);
  }

  /// Tokens after the sinks and before this one are gone.
  idx oldest_of(const entry& e) const {
    idx oldest = larger(Policy::sinks, e.lost);
    if (plan_.window_slots) oldest = larger(oldest, e.written - plan_.window_slots);
    if (tabled && e.pages_passed > ceil_div(first_body_slot(), plan_.page_rows))
      oldest = larger(oldest, Policy::sinks + e.pages_passed * plan_.page_rows - first_body_slot());
    return oldest;
  }
  /// Everything of a row that is there, as lengths: also what only a truncation would show again.
  lengths there(int row) const {
    const entry& e = at(row);
    const idx body = Policy::tail > 0 ? e.body : e.length;
    lengths n{e.length, e.length, body, body};
    if constexpr (slides) n.before = oldest_of(e) - first_seen(0, policy_.retention.width());
    return n;
  }

  /// Gives an empty row what another has, in lengths and in pages; of a page that both go on in it owes a copy.
  void inherit(const sequence_copy& c) {
    at(c.to) = at(c.from);
    for (int i = 0; i < tables(); ++i) {
      const int from = first_table(c.from) + i, to = first_table(c.to) + i;
      filled(to) = filled(from);
      if constexpr (evicts) lists()[to] = lists()[from];
      if constexpr (!tabled) continue;
      const idx kept = kept_pages(from), entries = filled(from);
      pages_.name(from, kept);
      pages_.share_text(from, to);
      pages_.share(from, to, kept, entries);
      if (kept < entries && rows_of(from) > kept * plan_.page_rows) pages_.owe_copy(from, to, kept);
    }
  }
  /// Leaves a row with nothing; what has a name can be found still.
  void clear(int row) {
    each_table(row, [&](int t) {
      pages_.name(t, kept_pages(t));
      give_pages(t, 0);
      pages_.end_text(t);
      if constexpr (evicts) lists()[t] = {};
    });
  }
  void give_pages(int table, idx from) {
    entry& e = at(row_of(table));
    pages_.give(table, from, filled(table));
    filled(table) = smaller(filled(table), from);
    e.pages_passed = smaller(e.pages_passed, filled(table));
  }
  /// Gives back the pages behind those that the row's tokens take.
  void give_spare_pages(int row) {
    // NOTE: what has left the tail stays in the body, also where a sequence of this length would have it in its tail.
    each_table(row, [&](int t) { give_pages(t, larger(pages_for(live(t)), pages_of_rows(rows_of(t)))); });
  }
  /// Pages with any of the body's rows [first, last) that others have too.
  idx shared_pages(int table, idx first, idx last) const {
    idx pages = 0;
    each_page(first, last, [&](idx entry) { pages += pages_.shared(table, entry); });
    return pages;
  }
  /// Gives a table copies of these; they are owed, and the pages are there.
  void own_pages(int table, idx first, idx last) {
    each_page(first, last, [&](idx entry) {
      if (pages_.shared(table, entry)) pages_.replace(table, entry);
    });
  }
  /// Gives back pages that no later query sees.
  void release_left_of_window(int row) {
    if constexpr (slides && tabled) {
      entry& e = at(row);
      const idx seen = first_seen(e.length, policy_.retention.width()) - Policy::sinks;  // among tokens after the sinks
      const idx first_page = (first_body_slot() + larger(seen, 0)) / plan_.page_rows;
      e.pages_passed = larger(e.pages_passed, ceil_div(first_body_slot(), plan_.page_rows));
      const idx passed = smaller(first_page, filled(first_table(row)));  // NOTE: what slides has as many of every head
      each_table(row, [&](int t) { pages_.give(t, e.pages_passed, passed); });
      e.pages_passed = larger(e.pages_passed, passed);
    }
  }

  Policy policy_;
  cache_shape shape_;
  arrangement<Policy> plan_;
  text_table<Space> pages_;

 private:
  idx evicted(int table) const {
    if constexpr (evicts)
      return lists()[table].evicted;
    else
      return 0;
  }
  /// `body(entry)` for each page with any of the body's rows [first, last).
  template <class Body>
  void each_page(idx first, idx last, Body&& body) const {
    for (idx entry = first / plan_.page_rows; tabled && first < last && entry < pages_of_rows(last); ++entry)
      body(entry);
  }

  std::vector<entry> entries_;  // by row
  std::vector<idx> filled_;     // by table
  buffer<Space> lists_;
};

}  // namespace kvilt::inline KVILT_ABI::detail
