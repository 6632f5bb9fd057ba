#pragma once

#include <kvilt/cache/page_source.hpp>
#include <kvilt/cache/reorder.hpp>
#include <kvilt/cache/upload.hpp>
#include <kvilt/core/math.hpp>
#include <kvilt/core/memory.hpp>

#include <algorithm>
#include <span>
#include <unordered_set>
#include <vector>

namespace kvilt::inline KVILT_ABI::detail {

/// Where the ids of a page table lie: the verbs read them at `there`, the owner reads and writes them at `here`.
template <memory_space Space>
class table_memory;

template <>
class table_memory<memory_space::host> {
 public:
  table_memory(int rows, idx width, memory<memory_space::host> from)
      : ids_(from, sizeof(page_id) * std::size_t(rows * width)) {
    std::fill_n(here(), rows * width, page_id(-1));
  }

  page_id* here() const { return reinterpret_cast<page_id*>(ids_.data()); }
  const page_id* there() const { return here(); }
  static void changed(int, idx, idx) {}

 private:
  buffer<memory_space::host> ids_;  // [rows][width]
};

/// The host has every id too, and knows of which entries the device has not heard: of each row a range.
template <>
class table_memory<memory_space::device> {
 public:
  table_memory(int rows, idx width, memory<memory_space::device> from)
      : width_(width),
        ids_(std::size_t(rows * width), page_id(-1)),
        there_(from, sizeof(page_id) * ids_.size()),
        changes_(std::size_t(rows)) {
    changed_rows_.reserve(changes_.size());
  }

  page_id* here() { return ids_.data(); }
  const page_id* here() const { return ids_.data(); }
  page_id* there() const { return reinterpret_cast<page_id*>(there_.data()); }
  std::size_t bytes() const { return there_.bytes(); }

  void changed(int row, idx first, idx last) {
    if (first >= last) return;
    position_range& known = changes_[std::size_t(row)];
    if (known.last == 0) changed_rows_.push_back(row), known = {first, last};
    known = {smaller(known.first, first), larger(known.last, last)};
  }

  /// What there is to send, or would be at most if `rows` more rows changed.
  table_changes changes(idx rows = 0) const {
    table_changes all;
    for (const int row : changed_rows_) all.add(changes_[std::size_t(row)]);
    for (idx i = 0; i < rows; ++i) all.add({0, width_});
    return all;
  }
  /// Writes it, as much as `changes` says.
  void write(table_run* runs, page_id* ids) const {
    idx sent = 0;
    for (const int row : changed_rows_) {
      const position_range range = changes_[std::size_t(row)];
      for (idx first = range.first; first < range.last; first += table_run::longest) {
        const int count = int(smaller(range.last - first, table_run::longest));
        const idx at = row * width_ + first;
        *runs++ = {at, sent, count};
        std::copy_n(ids_.data() + at, count, ids + sent);
        sent += count;
      }
    }
  }
  /// The device hears of everything from now on what is written is sent.
  void sent() {
    for (const int row : changed_rows_) changes_[std::size_t(row)] = {};
    changed_rows_.clear();
    blank_ = false;
  }
  /// Nothing has been sent: the device's entries are to be -1 first.
  bool blank() const { return blank_; }

 private:
  idx width_;
  std::vector<page_id> ids_;             // [rows][width]
  buffer<memory_space::device> there_;   // the same
  std::vector<position_range> changes_;  // [rows]: entries not sent yet; empty where `last` is 0
  std::vector<int> changed_rows_;
  bool blank_ = true;
};

/// The pages of each row of a view's tables: ids, from one pool. Entries without a page are -1. Rows may have pages in
/// common, which none of them writes.
template <memory_space Space>
class owned_table {
 public:
  /// `named_tokens`: as `page_source` has it.
  owned_table(int rows, idx width, idx pages, int named_tokens, memory<Space> from)
      : from_(pages, named_tokens), width_(width), ids_(rows, width, from) {}

  const page_id* data() const { return ids_.there(); }
  table_memory<Space>& memory_of_ids() { return ids_; }
  /// Pages that can be taken.
  idx free() const { return from_.available(); }
  idx total() const { return from_.pool().total(); }
  page_counts counts() const { return from_.pool().counts(); }

  /// Whether others have an entry's page too, or may find it.
  bool shared(int row, idx entry) const { return shared(at(row)[entry]); }
  /// Pages of entries [first, last) that nobody else has: as many as `share` takes.
  idx own_pages(int row, idx first, idx last) const {
    return std::count_if(at(row) + first, at(row) + larger(first, last),
                         [&](page_id p) { return p >= 0 && !shared(p); });
  }
  /// Gives entries [first, last) a page each; so many must be free.
  void take(int row, idx first, idx last) {
    ids_.changed(row, first, last);
    if (first < last) from_.take({at(row) + first, std::size_t(last - first)});
  }
  /// Gives the pages of entries [first, last) back, where there are any.
  void give(int row, idx first, idx last) {
    ids_.changed(row, first, last);
    if (first >= last) return;
    from_.give({at(row) + first, std::size_t(last - first)}, first);
    std::fill(at(row) + first, at(row) + last, page_id(-1));
    forget_unread_copies();
  }
  /// An empty row gets what another has among its first `entries`: the same page before entry `kept` and where the page
  /// is shared already, else one of its own, which must be free.
  void share(int from, int to, idx kept, idx entries) {
    ids_.changed(to, 0, entries);
    for (idx i = 0; i < entries; ++i) {
      const page_id p = at(from)[i];
      if (p < 0) continue;
      const bool same = i < kept || shared(p);
      if (same) from_.hold(p);
      at(to)[i] = same ? p : from_.take();
    }
  }
  /// A page of its own for an entry whose page is shared; one must be free. What was in that is owed: copied before
  /// anybody writes into either, whoever has them then.
  void replace(int row, idx entry) {
    page_id& p = at(row)[entry];
    const copied_page copy{p, from_.take()};
    from_.give({&p, 1}, entry);
    p = copy.to;
    ids_.changed(row, entry, entry + 1);
    owed_.push_back(copy);
  }
  /// Copies that `replace` and `owe_copy` have left to do, in this order, as if one after another.
  std::span<const copied_page> owed() const { return owed_; }
  void settled() { owed_.clear(); }

  /// What is in a row's page is owed to a copy of the row, for an entry that both go on in.
  void owe_copy(int from, int to, idx entry) {
    const copied_page copy{at(from)[entry], at(to)[entry]};
    if (copy.from != copy.to) owed_.push_back(copy);
  }

  /// What becomes of pages when rows are emptied.
  class emptying {
   public:
    explicit emptying(const owned_table& table) : table_(table) {}
    void add(int row, idx entries) {
      for (idx i = 0; i < entries; ++i)
        if (table_.at(row)[i] >= 0) given_.push_back(table_.at(row)[i]);
    }
    /// Pages that nobody has then. To be asked when all rows are added, before `own_pages`.
    idx freed() {
      std::ranges::sort(given_);
      idx pages = 0;
      for (auto p = given_.begin(); p != given_.end(); p = std::upper_bound(p, given_.end(), *p))
        pages += table_.from_.pool().holders(*p) == times(*p);
      return pages;
    }
    /// Pages of entries [first, last) that nobody else has then.
    idx own_pages(int row, idx first, idx last) const {
      return std::count_if(table_.at(row) + first, table_.at(row) + larger(first, last), [&](page_id p) {
        return p >= 0 && !table_.from_.kept(p, table_.from_.pool().holders(p) - times(p));
      });
    }

   private:
    idx times(page_id p) const {
      const auto [first, last] = std::equal_range(given_.begin(), given_.end(), p);
      return last - first;
    }

    const owned_table& table_;
    std::vector<page_id> given_;
  };

 protected:
  page_id* at(int row) { return ids_.here() + row * width_; }
  const page_id* at(int row) const { return ids_.here() + row * width_; }
  void changed(int row, idx first, idx last) { ids_.changed(row, first, last); }

  page_source from_;

 private:
  bool shared(page_id p) const { return p >= 0 && from_.shared(p); }
  /// Of what is owed, what nobody has any more and no later copy reads.
  void forget_unread_copies() {
    if (owed_.empty()) return;
    std::unordered_set<page_id> read;
    auto kept = owed_.end();
    for (auto c = owed_.end(); c != owed_.begin();) {
      --c;
      if (from_.pool().holders(c->to) == 0 && !read.contains(c->to)) continue;
      read.insert(c->from);
      *--kept = *c;
    }
    owed_.erase(owed_.begin(), kept);
  }

  idx width_;
  table_memory<Space> ids_;
  std::vector<copied_page> owed_;
};

}  // namespace kvilt::inline KVILT_ABI::detail
