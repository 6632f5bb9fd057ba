#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/pages/eviction.hpp>
#include <kvilt/pages/page_array.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvilt::inline KVILT_ABI::detail {

/// What a `page_manager` whose sequences belong to several threads does with words that others may look at meanwhile.
struct many_threads {
  static constexpr std::size_t alignment =
      64;  // of what a step touches of a sequence: a line that no other thread writes
  static std::uint32_t load(const std::uint32_t& word) {
    return std::atomic_ref(const_cast<std::uint32_t&>(word)).load(std::memory_order_relaxed);
  }
  static void store(std::uint32_t& word, std::uint32_t value) {
    std::atomic_ref(word).store(value, std::memory_order_relaxed);
  }
};

/// A count that threads add to without waiting for each other, as long as their shards differ.
class sharded_count {
 public:
  void add(int whose, idx n) { shards_[std::size_t(whose) % shards_.size()].n.fetch_add(n, std::memory_order_relaxed); }
  idx sum() const {
    idx all = 0;
    for (const shard& s : shards_) all += s.n.load(std::memory_order_relaxed);
    return all;
  }

 private:
  struct alignas(many_threads::alignment) shard {
    std::atomic<idx> n{0};
  };
  std::array<shard, 16> shards_;
};

/// A policy that also knows since when each page has had its name, so that what was found before others evicted can be
/// told from what is found no longer. 4 bytes a page more.
template <eviction_policy Eviction>
class stamped {
 public:
  explicit stamped(Eviction e) : policy_(std::move(e)), named_at_(std::size_t(policy_.pages())) {}
  explicit stamped(idx pages) : stamped(Eviction(pages)) {}

  Eviction& policy() { return policy_; }
  /// How many names were given so far.
  std::uint64_t now() const { return now_; }
  /// Whether `p` may have got its name after `then`. NOTE: half of a stamp is kept; where more names were given since
  /// than that tells apart, the answer is yes.
  bool named_since(page_id p, std::uint64_t then) const {
    const std::uint64_t passed = now_ - then;
    return passed > 0xffffffffu || std::uint32_t(now_) - named_at_[std::size_t(p)] < passed;
  }

  idx pages() const { return policy_.pages(); }
  void stored(page_id p, bool returns) {
    policy_.stored(p, returns);
    named_at_[std::size_t(p)] = std::uint32_t(++now_);
  }
  void hit(page_id p) { policy_.hit(p); }
  void given(page_id p, page_id child, const page_use& use) { policy_.given(p, child, use); }
  void idle(page_id p) { policy_.idle(p); }
  void busy(page_id p) { policy_.busy(p); }
  page_id pop() { return policy_.pop(); }

 private:
  Eviction policy_;
  page_array<std::uint32_t> named_at_;  // [pages]
  std::uint64_t now_ = 0;
};

}  // namespace kvilt::inline KVILT_ABI::detail
