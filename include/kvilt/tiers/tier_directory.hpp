#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/math.hpp>
#include <kvilt/core/types.hpp>
#include <kvilt/pages/prefix_roots.hpp>
#include <kvilt/pages/token_hash.hpp>

#include <algorithm>
#include <array>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvilt::inline KVILT_ABI::detail {

/// Which prefix is where: a trie of pages of tokens, in the pool or in tiers. A node is found by its prefix's name, and
/// then compared as `prefix_index` compares: its tokens one by one, the node before it, which has been compared already,
/// and the first with its root's extra keys.
class tier_directory {
 public:
  static constexpr int most_tiers = 4;
  struct node {
    std::uint64_t name = 0;
    int before = -1, root = -1;                // the node before it; its root
    int child = -1, next = -1, previous = -1;  // a node after it; others after the same one
    int depth = 0;                             // pages before it
    page_id page = -1;                         // of the pool
    std::array<int, most_tiers> slots = {-1, -1, -1, -1};
    int pins = 0;  // who relies on its being here

    bool in_tiers() const {
      return std::ranges::any_of(slots, [](int s) { return s >= 0; });
    }
  };

  explicit tier_directory(int page_tokens) : page_tokens_(page_tokens) {}

  node& operator[](int n) { return nodes_[std::size_t(n)]; }
  const node& operator[](int n) const { return nodes_[std::size_t(n)]; }
  std::span<const token_id> tokens(int n) const {
    return {tokens_.data() + std::size_t(n) * std::size_t(page_tokens_), std::size_t(page_tokens_)};
  }
  std::span<const std::uint64_t> keys(int n) const { return roots_.keys(nodes_[std::size_t(n)].root); }
  idx count() const { return idx(by_name_.size()); }

  /// The root of these keys, for as long as `body(root)` takes.
  template <class Body>
  auto with_root(std::span<const std::uint64_t> keys, std::uint64_t name, Body&& body) {
    const int root = roots_.open(keys, name);
    const auto result = body(root);
    roots_.close(root);
    return result;
  }
  int find(int root, int before, std::uint64_t name, std::span<const token_id> tokens) const {
    const auto [first, last] = by_name_.equal_range(name);
    for (auto i = first; i != last; ++i) {
      const node& n = nodes_[std::size_t(i->second)];
      if (n.before == before && n.root == root && std::ranges::equal(this->tokens(i->second), tokens)) return i->second;
    }
    return -1;
  }
  int add(int root, int before, std::uint64_t name, std::span<const token_id> tokens) {
    if (unused_.empty()) {
      unused_.push_back(int(nodes_.size()));
      nodes_.emplace_back();
      tokens_.resize(tokens_.size() + std::size_t(page_tokens_));
    }
    const int n = unused_.back();
    unused_.pop_back();
    int& sibling = first_after(root, before);
    nodes_[std::size_t(n)] = {};
    node& made = nodes_[std::size_t(n)];
    made.name = name, made.before = before, made.root = root, made.next = sibling;
    made.depth = before >= 0 ? nodes_[std::size_t(before)].depth + 1 : 0;
    if (sibling >= 0) nodes_[std::size_t(sibling)].previous = n;
    sibling = n;
    std::ranges::copy(tokens, tokens_.begin() + std::ptrdiff_t(n) * page_tokens_);
    by_name_.emplace(name, n);
    roots_.use(root);
    return n;
  }
  /// Nothing follows on it.
  void remove(int n) {
    const node gone = nodes_[std::size_t(n)];
    if (gone.next >= 0) nodes_[std::size_t(gone.next)].previous = gone.previous;
    if (gone.previous >= 0)
      nodes_[std::size_t(gone.previous)].next = gone.next;
    else
      first_after(gone.root, gone.before) = gone.next;
    auto i = by_name_.equal_range(gone.name).first;
    while (i->second != n) ++i;
    by_name_.erase(i);
    roots_.close(gone.root);
    unused_.push_back(n);
  }

 private:
  // NOTE: a root's first node is kept as its first page is in the index.
  int& first_after(int root, int before) {
    return before >= 0 ? nodes_[std::size_t(before)].child : roots_.first_page(root);
  }

  int page_tokens_;
  std::vector<node> nodes_;
  std::vector<token_id> tokens_;  // [nodes][page_tokens]
  std::vector<int> unused_;
  std::unordered_multimap<std::uint64_t, int> by_name_;
  prefix_roots roots_;
};

/// An eviction policy whose type is not known here.
class slot_order {
 public:
  virtual ~slot_order() = default;
  virtual void enter(int slot, idx first_token) = 0;  // has a page now, which may go
  virtual void hit(int slot) = 0;
  virtual void idle(int slot) = 0;
  virtual void busy(int slot) = 0;
  virtual int pop() = 0;
};

}  // namespace kvilt::inline KVILT_ABI::detail
