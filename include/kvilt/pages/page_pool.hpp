#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/types.hpp>

#include <vector>

namespace kvilt::inline KVILT_ABI {

/// Hands out page ids and takes them back: ids and counts, never bytes. The newest freed page is handed out first.
/// O(1) each; free + used = total at all times.
class page_pool {
 public:
  /// Pages 0 to `pages` - 1, handed out from 0 up. Throws `invalid_argument` for what no id can name.
  explicit page_pool(idx pages) : used_(std::size_t(checked(pages)), false) {
    free_.reserve(std::size_t(pages));
    for (idx p = pages; p-- > 0;) free_.push_back(page_id(p));
  }

  idx total() const { return idx(used_.size()); }
  idx free() const { return idx(free_.size()); }
  idx used() const { return total() - free(); }

  /// A page that nobody holds. Throws `out_of_pages`.
  page_id take() {
    detail::expects<out_of_pages>(!free_.empty(), "no page is free of ", total());
    const page_id p = free_.back();
    free_.pop_back();
    used_[std::size_t(p)] = true;
    return p;
  }

  /// Gives a page back. Throws `invalid_argument` for one that is not in use.
  void give(page_id p) {
    detail::expects(p >= 0 && p < total(), "page ", p, " is given back; the pool has pages 0 to ", total() - 1);
    detail::expects(used_[std::size_t(p)], "page ", p, " is given back twice");
    used_[std::size_t(p)] = false;
    free_.push_back(p);
  }

 private:
  static idx checked(idx pages) {
    detail::expects(pages >= 0 && pages < idx(1) << 31, "a pool of ", pages, " pages; 0 to 2^31 - 1 are supported");
    return pages;
  }

  std::vector<page_id> free_;
  std::vector<bool> used_;
};

}  // namespace kvilt::inline KVILT_ABI
