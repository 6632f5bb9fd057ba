#pragma once

#include <kvilt/core/math.hpp>
#include <kvilt/pages/eviction.hpp>
#include <kvilt/pages/ranked_lists.hpp>

namespace kvilt::inline KVILT_ABI {

/// Frequency that ages. Each hit of a page, up to 7, makes it as young as if it had been used half a pool later, measured
/// in pages stored. A page that is stored again soon after it was evicted counts as hit. So pages that no prompt asks for
/// a second time pass through without flushing those that prompts do: a page hit once outlives a scan as long as the
/// rest of the pool and half a pool more, one hit seven times three pools more. 10 bytes a page.
class aged_lfu {
 public:
  explicit aged_lfu(idx pages)
      : queues_(pages), stores_a_tick_(1 + pages / ticks_a_pool), credit_(std::uint32_t(pages / stores_a_tick_ / 2)) {}

  idx pages() const { return queues_.ids(); }
  void stored(page_id p, bool returns) {
    queues_.set_rank(p, returns);
    ++stores_;
  }
  void hit(page_id p) { raise(p, queues_.rank(p) + 1); }
  void given(page_id p, page_id child, const page_use&) {
    if (child >= 0) raise(p, queues_.rank(child));
  }
  void idle(page_id p) { queues_.push_back(p, std::uint32_t(stores_ / stores_a_tick_)); }
  void busy(page_id p) { queues_.remove(p); }
  page_id pop() {
    const page_id p = queues_.longest_ago([&](int hits) { return std::uint32_t(hits) * credit_; });
    if (p >= 0) queues_.remove(p);
    return p;
  }

 private:
  // NOTE: what is idle longest was put in its queue four and a half pools ago, and the clock has 16 pools.
  static constexpr idx ticks_a_pool = 512;

  void raise(page_id p, int rank) {
    if (rank > queues_.rank(p)) queues_.set_rank(p, int(smaller(rank, queues_.ranks - 1)));
  }

  detail::ranked_lists<std::uint16_t> queues_;
  // NOTE: the clock is that of stores. One that hits moved on would come round while a few hot pages are used.
  idx stores_ = 0, stores_a_tick_;
  std::uint32_t credit_;
};
static_assert(eviction_policy<aged_lfu>);

}  // namespace kvilt::inline KVILT_ABI
