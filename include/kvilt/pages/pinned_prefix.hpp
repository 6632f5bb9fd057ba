#pragma once

#include <kvilt/pages/eviction.hpp>
#include <kvilt/pages/prefix_index.hpp>

#include <vector>

namespace kvilt::inline KVILT_ABI {
namespace detail {
template <eviction_policy Eviction, prefix_hash Hash, class Threads>
class managed_pages;
}

/// A prefix that stays though no sequence has it. It is there until the manager that pinned it has it back.
class pinned_prefix {
 public:
  pinned_prefix() = default;
  pinned_prefix(pinned_prefix&&) = default;
  pinned_prefix& operator=(pinned_prefix&&) = default;

  idx tokens() const { return pages_.empty() ? 0 : tokens_; }

 private:
  template <eviction_policy, prefix_hash, class>
  friend class detail::managed_pages;

  prefix_end end_;
  idx tokens_ = 0;
  std::vector<std::vector<page_id>> pages_;  // of each group; -1: not needed
};

}  // namespace kvilt::inline KVILT_ABI
