#pragma once

#include <kvilt/core/memory.hpp>
#include <kvilt/pages/page_pool.hpp>

#include <algorithm>

namespace kvilt::inline KVILT_ABI::detail {

/// The pages of each row of a view's tables: ids, from one pool. Entries without a page are -1.
template <memory_space Space>
class owned_table {
 public:
  owned_table(int rows, idx width, idx pages, memory<Space> from)
      : width_(width), ids_(from, sizeof(page_id) * std::size_t(rows * width)), pool_(pages) {
    std::fill_n(data(), rows * width, page_id(-1));
  }

  page_id* data() const { return reinterpret_cast<page_id*>(ids_.data()); }
  idx free() const { return pool_.free(); }
  idx total() const { return pool_.total(); }

  /// Pages among a row's first `entries`.
  idx count(int row, idx entries) const {
    const page_id* first = at(row);
    return std::count_if(first, first + entries, [](page_id p) { return p >= 0; });
  }
  /// Gives entries [first, last) a page each; so many must be free.
  void take(int row, idx first, idx last) {
    for (; first < last; ++first) at(row)[first] = pool_.take();
  }
  /// Takes the pages of entries [first, last), where there are any, back into the pool.
  void give(int row, idx first, idx last) {
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
  page_id* at(int row) const { return data() + row * width_; }

  idx width_;
  buffer<Space> ids_;  // [rows][width]
  page_pool pool_;
};

}  // namespace kvilt::inline KVILT_ABI::detail
