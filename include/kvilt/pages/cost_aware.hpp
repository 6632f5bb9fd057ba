#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/math.hpp>
#include <kvilt/pages/eviction.hpp>
#include <kvilt/pages/ranked_lists.hpp>

namespace kvilt::inline KVILT_ABI {

/// What it takes to compute a page's rows again, 1 at the beginning of a text: a token's matrix products cost the same
/// everywhere, its attention as much as stands before it. `balance`: the position at which both cost the same.
struct prefill_cost {
  double balance = 16384;
  double operator()(idx first_token) const { return 1 + double(first_token) / balance; }
};

/// What is cheap to compute again goes first, and what has not been used for long (GreedyDual: N. Young, "The k-server
/// dual and loose competitiveness for paging", 1994): a page counts L + cost, L being what the page counted that was
/// evicted last, and the least goes. All pages have one size, and costs are rounded down to powers of two, 1 to 128.
/// 12 bytes a page.
template <class Cost = prefill_cost>
class cost_aware {
 public:
  explicit cost_aware(idx pages, Cost cost = {}) : queues_(pages), cost_(cost) {}

  idx pages() const { return queues_.ids(); }
  void stored(page_id p, bool) { queues_.set_rank(p, 0); }
  void hit(page_id) {}
  void given(page_id p, page_id child, const page_use& use) {
    int rank = child >= 0 ? queues_.rank(child) : 0;
    while (rank + 1 < queues_.ranks && cost_(use.first_token) >= double(2 << rank)) ++rank;
    if (rank > queues_.rank(p)) queues_.set_rank(p, rank);
  }
  void idle(page_id p) { queues_.push_back(p, evicted_); }
  void busy(page_id p) { queues_.remove(p); }
  page_id pop() {
    const page_id p = queues_.longest_ago(cost_of);
    if (p < 0) return p;
    evicted_ = queues_.time(p) + cost_of(queues_.rank(p));
    queues_.remove(p);
    return p;
  }

 private:
  static std::uint32_t cost_of(int rank) { return std::uint32_t(1) << rank; }

  detail::ranked_lists<std::uint32_t> queues_;
  Cost cost_;
  std::uint32_t evicted_ = 0;  // L
};
static_assert(eviction_policy<cost_aware<>>);

}  // namespace kvilt::inline KVILT_ABI
