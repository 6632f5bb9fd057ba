#pragma once

#include <kvilt/core/types.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace kvilt::inline KVILT_ABI::detail {

/// The empty prefixes: one for each list of extra keys that somebody uses, compared in full.
class prefix_roots {
 public:
  /// The root of these keys, whose name is `name`; -1: there is none.
  int find(std::span<const std::uint64_t> keys, std::uint64_t name) const {
    const auto [first, last] = by_name_.equal_range(name);
    for (auto i = first; i != last; ++i)
      if (std::ranges::equal(roots_[std::size_t(i->second)].keys, keys)) return i->second;
    return -1;
  }
  /// The same, used once more; a new one where there is none.
  int open(std::span<const std::uint64_t> keys, std::uint64_t name) {
    if (const int there = find(keys, name); there >= 0) {
      use(there);
      return there;
    }
    if (unused_.empty()) {
      unused_.push_back(int(roots_.size()));
      roots_.emplace_back();
    }
    const int r = unused_.back();
    unused_.pop_back();
    roots_[std::size_t(r)] = {{keys.begin(), keys.end()}, name, 1, -1};
    by_name_.emplace(name, r);
    return r;
  }
  void use(int r) { ++roots_[std::size_t(r)].users; }
  /// One user less; without one a root is gone.
  void close(int r) {
    root& gone = roots_[std::size_t(r)];
    if (--gone.users > 0) return;
    auto i = by_name_.equal_range(gone.name).first;
    while (i->second != r) ++i;
    by_name_.erase(i);
    unused_.push_back(r);
  }

  idx count() const { return idx(by_name_.size()); }
  std::span<const std::uint64_t> keys(int r) const { return roots_[std::size_t(r)].keys; }
  std::uint64_t name(int r) const { return roots_[std::size_t(r)].name; }
  /// The first of the pages that follow on the empty prefix, or -1.
  page_id& first_page(int r) { return roots_[std::size_t(r)].first_page; }

 private:
  struct root {
    std::vector<std::uint64_t> keys;
    std::uint64_t name = 0;
    idx users = 0;
    page_id first_page = -1;
  };
  std::vector<root> roots_;
  std::vector<int> unused_;
  std::unordered_multimap<std::uint64_t, int> by_name_;
};

}  // namespace kvilt::inline KVILT_ABI::detail
