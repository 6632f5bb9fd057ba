#pragma once

#include <kvilt/cache/upload.hpp>
#include <kvilt/core/math.hpp>
#include <kvilt/core/memory.hpp>
#include <kvilt/pages/page_pool.hpp>

#include <algorithm>
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

/// The pages of each row of a view's tables: ids, from one pool. Entries without a page are -1.
template <memory_space Space>
class owned_table {
 public:
  owned_table(int rows, idx width, idx pages, memory<Space> from)
      : width_(width), ids_(rows, width, from), pool_(pages) {}

  const page_id* data() const { return ids_.there(); }
  table_memory<Space>& memory_of_ids() { return ids_; }
  idx free() const { return pool_.free(); }
  idx total() const { return pool_.total(); }

  /// Pages among a row's first `entries`.
  idx count(int row, idx entries) const {
    const page_id* first = ids_.here() + row * width_;
    return std::count_if(first, first + entries, [](page_id p) { return p >= 0; });
  }
  /// Gives entries [first, last) a page each; so many must be free.
  void take(int row, idx first, idx last) {
    ids_.changed(row, first, last);
    for (; first < last; ++first) at(row)[first] = pool_.take();
  }
  /// Takes the pages of entries [first, last), where there are any, back into the pool.
  void give(int row, idx first, idx last) {
    ids_.changed(row, first, last);
    while (last > first) {
      page_id& p = at(row)[--last];
      if (p >= 0) pool_.give(p);
      p = -1;
    }
  }
  /// Pages of its own for an empty row, where another has some among its first `entries`.
  void match(int from, int to, idx entries) {
    for (idx i = 0; i < entries; ++i)
      if (at(from)[i] >= 0) take(to, i, i + 1);
  }

 private:
  page_id* at(int row) { return ids_.here() + row * width_; }

  idx width_;
  table_memory<Space> ids_;
  page_pool pool_;
};

}  // namespace kvilt::inline KVILT_ABI::detail
