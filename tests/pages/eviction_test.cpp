#include "support/catch.hpp"

#include <kvilt/pages/aged_lfu.hpp>
#include <kvilt/pages/cost_aware.hpp>
#include <kvilt/pages/lru.hpp>
#include <kvilt/pages/priority.hpp>

#include <algorithm>
#include <random>
#include <tuple>
#include <vector>

namespace {

using namespace kvilt;
using support::containing;

template <class Eviction>
std::vector<page_id> order_of(Eviction& e) {
  std::vector<page_id> order;
  for (page_id p = e.pop(); p >= 0; p = e.pop()) order.push_back(p);
  return order;
}
// A prompt's only page, used once.
template <class Eviction>
void use(Eviction& e, page_id p, const page_use& by = {}) {
  e.given(p, -1, by);
  e.idle(p);
}
template <class Eviction>
void store(Eviction& e, page_id p, const page_use& by = {}, bool returns = false) {
  e.stored(p, returns);
  use(e, p, by);
}
template <class Eviction>
void hit(Eviction& e, page_id p) {
  e.busy(p);
  e.hit(p);
  use(e, p);
}

}  // namespace

TEST_CASE("lru: the least recently used page goes first", "[pages]") {
  lru e(5);
  CHECK(e.pop() == -1);
  for (const page_id p : {3, 1, 4, 0}) store(e, p);
  hit(e, 1);
  e.busy(4);
  CHECK(order_of(e) == std::vector<page_id>{3, 0, 1});
}

TEST_CASE("aged_lfu: a hit is worth half a pool of stores", "[pages]") {
  for (const int later : {3, 4, 5}) {
    aged_lfu e(8);
    store(e, 0);
    hit(e, 0);
    for (page_id p = 1; p < later; ++p) e.stored(p, false);
    store(e, 7);
    // NOTE: of two that are equal the one without hits goes.
    CHECK(order_of(e) == (later > 4 ? std::vector<page_id>{0, 7} : std::vector<page_id>{7, 0}));
  }
}

TEST_CASE("aged_lfu: what comes back after its eviction counts as hit, and no page as more than seven times",
          "[pages]") {
  aged_lfu e(8);
  store(e, 0, {}, true);
  store(e, 1);
  store(e, 2);
  CHECK(order_of(e) == std::vector<page_id>{1, 2, 0});

  store(e, 0);
  for (int i = 0; i < 100; ++i) hit(e, 0);
  for (int i = 0; i < 7 * 4; ++i) e.stored(1, false);
  store(e, 2);
  CHECK(order_of(e) == std::vector<page_id>{0, 2});
}

TEST_CASE("aged_lfu: pages used twice outlive a scan", "[pages]") {
  const idx pages = 1000;
  aged_lfu aged(pages);
  lru plain(pages);
  const auto survivors = [&](auto& e) {
    std::vector<page_id> free;
    for (page_id p = page_id(pages); p-- > 0;) free.push_back(p);
    std::vector<page_id> hot;
    const auto next = [&] {
      if (free.empty()) free.push_back(e.pop());
      const page_id p = free.back();
      free.pop_back();
      return p;
    };
    for (int i = 0; i < 300; ++i) store(e, hot.emplace_back(next()));
    for (const page_id p : hot) hit(e, p);
    std::vector<bool> lost(std::size_t(pages), false);
    for (int i = 0; i < 1190; ++i) {
      const page_id p = next();
      lost[std::size_t(p)] = true;
      store(e, p);
    }
    return std::count_if(hot.begin(), hot.end(), [&](page_id p) { return !lost[std::size_t(p)]; });
  };
  CHECK(survivors(aged) == 300);
  CHECK(survivors(plain) == 0);
}

TEST_CASE("priority: the lowest goes first, of one priority the least recently used", "[pages]") {
  priority e(8);
  store(e, 0, {0, 3});
  store(e, 1, {0, 0});
  store(e, 2, {0, 7});
  store(e, 3, {0, 3});
  store(e, 4, {0, 0});
  hit(e, 1);
  CHECK(order_of(e) == std::vector<page_id>{4, 1, 0, 3, 2});
  CHECK_THROWS_WITH(e.given(5, -1, {0, 8}), containing("page 5 has priority 8; there are 0 to 7"));
  CHECK_THROWS_WITH(e.given(5, -1, {0, -1}), containing("priority -1"));
}

TEST_CASE("priority: what was kept for its time goes first", "[pages]") {
  CHECK_THROWS_WITH(priority(8, {10, 5}), containing("priority 1 is kept for 5, less than 0 for 10"));
  priority e(8, {10, 20, 30, priority::for_ever, priority::for_ever, priority::for_ever, priority::for_ever,
                 priority::for_ever});
  e.time(1000);
  store(e, 0, {0, 2});
  store(e, 1, {0, 7});
  e.time(1031);
  store(e, 2, {0, 0});
  store(e, 3, {0, 1});
  CHECK(order_of(e) == std::vector<page_id>{0, 2, 3, 1});
  e.time(~std::uint32_t(0) - 5);  // time may come round
  store(e, 0, {0, 1});
  e.time(10);
  store(e, 1, {0, 0});
  CHECK(order_of(e) == std::vector<page_id>{1, 0});
  e.time(30);
  store(e, 2, {0, 1});
  e.time(51);
  store(e, 3, {0, 0});
  CHECK(order_of(e) == std::vector<page_id>{2, 3});
}

TEST_CASE("cost_aware: what is cheap to compute again goes first, and the dear one when it is old", "[pages]") {
  cost_aware<> e(8, prefill_cost{100});
  store(e, 0, {700, 0});  // costs 8
  store(e, 1, {0, 0});    // 1
  store(e, 2, {150, 0});  // 2.5, taken for 2
  CHECK(e.pop() == 1);    // L = 1
  CHECK(e.pop() == 2);    // L = 2
  for (int i = 0; i < 6; ++i) {
    store(e, 1);  // L + 1
    if (i < 5) CHECK(e.pop() == 1);
  }
  // Both count 8; of two that are equal the cheaper one goes.
  CHECK(e.pop() == 1);
  store(e, 1);  // 9
  CHECK(order_of(e) == std::vector<page_id>{0, 1});
}

// A tree of pages: whoever uses a page uses all before it, and gives the last back first.
TEMPLATE_TEST_CASE("eviction: no page goes before one that goes on from it", "[pages]", lru, aged_lfu, priority,
                   cost_aware<>) {
  constexpr int pages = 64;
  std::mt19937 random(3);
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  TestType e(pages);
  std::vector<page_id> parent(pages, -1);
  std::vector<int> children(pages, 0);
  std::vector<bool> stored(pages, false), idle(pages, false);
  const auto visit = [&](page_id leaf) {
    std::vector<page_id> path;
    for (page_id p = leaf; p >= 0; p = parent[std::size_t(p)]) path.push_back(p);
    for (std::size_t i = path.size(); i-- > 0;) {
      if (!idle[std::size_t(path[i])]) continue;
      e.busy(path[i]);
      e.hit(path[i]);
    }
    page_id child = -1;
    const int priority = below(8);
    for (std::size_t i = 0; i < path.size(); ++i) {
      e.given(path[i], child, {idx(path.size() - 1 - i) * 5000, priority});
      e.idle(child = path[i]);
      idle[std::size_t(path[i])] = true;
    }
  };
  for (int i = 0; i < 20'000; ++i) {
    const page_id p = below(pages);
    if (below(3) == 0) {
      const page_id gone = e.pop();
      if (gone < 0) continue;
      REQUIRE(stored[std::size_t(gone)]);
      REQUIRE(children[std::size_t(gone)] == 0);
      stored[std::size_t(gone)] = idle[std::size_t(gone)] = false;
      if (parent[std::size_t(gone)] >= 0) --children[std::size_t(parent[std::size_t(gone)])];
    } else if (stored[std::size_t(p)]) {
      visit(p);
    } else {
      // A prompt that goes on from what is there, by some pages.
      page_id before = below(pages), last = -1;
      if (!stored[std::size_t(before)]) before = -1;
      for (page_id q = p; q < smaller(p + 3, pages) && !stored[std::size_t(q)]; ++q) {
        parent[std::size_t(q)] = before;
        if (before >= 0) ++children[std::size_t(before)];
        stored[std::size_t(q)] = true;
        e.stored(q, below(5) == 0);
        before = last = q;
      }
      visit(last);
    }
  }
}

TEST_CASE("aged_lfu: the order is that of the formula", "[pages]") {
  struct page {
    bool stored = false, idle = false;
    idx hits = 0, time = 0, turn = 0;
  };
  std::mt19937 random(5);
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  constexpr int pages = 24;
  aged_lfu e(pages);
  std::vector<page> model(pages);
  idx stores = 0, turn = 0;
  const auto first = [&] {
    page_id best = -1;
    const auto key = [&](page_id p) {
      const page& m = model[std::size_t(p)];
      return std::tuple(m.time + m.hits * pages / 2, m.hits, m.turn);
    };
    for (page_id p = 0; p < pages; ++p)
      if (model[std::size_t(p)].idle && (best < 0 || key(p) < key(best))) best = p;
    return best;
  };
  for (int i = 0; i < 50'000; ++i) {
    const page_id p = below(pages);
    page& m = model[std::size_t(p)];
    if (below(3) == 0) {
      const page_id expected = first();
      REQUIRE(e.pop() == expected);
      if (expected >= 0) model[std::size_t(expected)] = {};
    } else if (!m.stored) {
      m = {true, true, below(4) == 0, ++stores, ++turn};
      e.stored(p, m.hits);
      use(e, p);
    } else if (below(2)) {
      e.busy(p);
      e.hit(p);
      use(e, p);
      m.hits = smaller(m.hits + 1, 7);
      m.time = stores;
      m.turn = ++turn;
    }
  }
}
