#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/types.hpp>
#include <kvilt/pages/page_array.hpp>

#include <cstdint>

namespace kvilt::inline KVILT_ABI::detail {

/// Some doubly linked lists over ids 0 to `ids` - 1, each id in one list at most: 8 bytes an id, every verb O(1).
class id_lists {
 public:
  id_lists(idx ids, int lists) : links_(std::size_t(checked(ids) + lists)), heads_(std::uint32_t(ids)) {
    // NOTE: a list is a ring through a link of its own, so nothing at its ends is special.
    for (std::uint32_t l = heads_; l < links_.size(); ++l) links_[l] = {l, l};
  }

  idx ids() const { return idx(heads_); }
  bool empty(int list) const { return links_[head(list)].next == head(list); }
  /// The first of a list; the next one after it may be asked for as long as it is there. -1 at the end.
  page_id first(int list) const { return id(links_[head(list)].next); }
  page_id last(int list) const { return id(links_[head(list)].previous); }
  page_id next(page_id p) const { return id(links_[std::uint32_t(p)].next); }

  void push_back(int list, page_id p) {
    const std::uint32_t end = head(list), last = links_[end].previous;
    links_[std::uint32_t(p)] = {last, end};
    links_[last].next = std::uint32_t(p);
    links_[end].previous = std::uint32_t(p);
  }
  void remove(page_id p) {
    const link l = links_[std::uint32_t(p)];
    links_[l.previous].next = l.next;
    links_[l.next].previous = l.previous;
  }

 private:
  struct link {
    std::uint32_t previous, next;
  };
  static idx checked(idx ids) {
    constexpr idx most = (idx(1) << 31) - 256;
    expects(ids >= 0 && ids <= most, "an order of ", ids, " pages; 0 to ", most, " can be");
    return ids;
  }
  std::uint32_t head(int list) const { return heads_ + std::uint32_t(list); }
  page_id id(std::uint32_t l) const { return l < heads_ ? page_id(l) : -1; }

  page_array<link> links_;  // [ids], then [lists]
  std::uint32_t heads_;
};

}  // namespace kvilt::inline KVILT_ABI::detail
