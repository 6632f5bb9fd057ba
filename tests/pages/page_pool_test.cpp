#include "support/catch.hpp"

#include <kvilt/pages/page_pool.hpp>

#include <array>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace {

using namespace kvilt;
using support::containing;

// What a pool should be, said at length.
struct pool_model {
  struct page {
    int holders = 0;
    bool named = false;
    completion work = 0;  // without a holder: that may touch it, at the latest
    bool left = false;    // one who no longer holds it left work under way
  };
  std::map<page_id, page> pages;  // that are not free
  completion done = 0;

  page_state state(const page& p) const {
    if (p.holders > 0) return page_state::used;
    if (p.work > done) return page_state::pending;
    return p.named ? page_state::cached : page_state::free;
  }
  // Pages without holder, work and name are free.
  void settle() {
    for (auto p = pages.begin(); p != pages.end();)
      p = state(p->second) == page_state::free ? pages.erase(p) : std::next(p);
  }
  page_counts counts(idx total, idx most_used) const {
    page_counts c{total, total - idx(pages.size()), 0, 0, 0, most_used};
    for (const auto& [id, p] : pages) {
      const page_state s = state(p);
      ++(s == page_state::used ? c.used : s == page_state::cached ? c.cached : c.pending);
    }
    return c;
  }
};

}  // namespace

TEST_CASE("page_pool: pages come from 0 up, the newest freed one first", "[pages]") {
  page_pool pool(4);
  for (page_id expected = 0; expected < 4; ++expected) CHECK(pool.take() == expected);
  pool.give(1);
  pool.give(3);
  CHECK(pool.take() == 3);
  CHECK(pool.take() == 1);
}

TEST_CASE("page_pool: an empty pool refuses and stays as it is", "[pages]") {
  page_pool pool(2);
  pool.take();
  pool.take();
  CHECK_THROWS_AS(pool.take(), out_of_pages);
  CHECK_THROWS_WITH(pool.take(), support::containing("of 2"));
  CHECK(pool.free() == 0);
  CHECK(pool.used() == 2);
  pool.give(0);
  CHECK(pool.take() == 0);
}

TEST_CASE("page_pool: a page that is not in use is not taken back", "[pages]") {
  page_pool pool(3);
  const page_id p = pool.take();
  pool.give(p);
  CHECK_THROWS_AS(pool.give(p), invalid_argument);
  CHECK_THROWS_WITH(pool.give(p), support::containing("page 0 is given back twice"));
  CHECK_THROWS_WITH(pool.give(2), support::containing("page 2"));
  CHECK_THROWS_WITH(pool.give(3), support::containing("page 3") && support::containing("0 to 2"));
  CHECK_THROWS_WITH(pool.give(-1), support::containing("page -1"));
  CHECK(pool.free() == 3);
  CHECK(pool.used() == 0);
}

TEST_CASE("page_pool: a pool of no pages", "[pages]") {
  page_pool pool(0);
  CHECK(pool.total() == 0);
  CHECK(pool.free() == 0);
  CHECK_THROWS_AS(pool.take(), out_of_pages);
  CHECK_THROWS_AS(pool.give(0), invalid_argument);
}

TEST_CASE("page_pool: some pages at once, or none", "[pages]") {
  page_pool pool(5);
  std::array<page_id, 3> pages{-7, -7, -7};
  pool.take(pages);
  CHECK(pages == std::array<page_id, 3>{0, 1, 2});
  std::array<page_id, 3> more{-7, -7, -7};
  CHECK_THROWS_WITH(pool.take(more), containing("3 pages are asked for; 2 of 5 are free"));
  CHECK(more == std::array<page_id, 3>{-7, -7, -7});
  CHECK(pool.counts() == page_counts{5, 2, 3, 0, 0, 3});
}

TEST_CASE("page_pool: a page is there until its last holder gives it back", "[pages]") {
  page_pool pool(2);
  const page_id p = pool.take();
  pool.hold(p);
  pool.hold(p);
  CHECK(pool.holders(p) == 3);
  CHECK(pool.give(p) == page_state::used);
  CHECK(pool.give(p) == page_state::used);
  CHECK(pool.give(p) == page_state::free);
  CHECK(pool.holders(p) == 0);
  CHECK_THROWS_WITH(pool.give(p), containing("page 0 is given back twice"));
  CHECK_THROWS_WITH(pool.hold(p), containing("page 0 is held"));
  CHECK_THROWS_WITH(pool.hold(2), containing("page 2 is held"));
  CHECK(pool.counts().most_used == 1);
}

TEST_CASE("page_pool: a page with a name is cached, and may be held again", "[pages]") {
  page_pool pool(2);
  const page_id p = pool.take();
  CHECK_THROWS_WITH(pool.forget(p), containing("page 0 is forgotten: it has no name"));
  CHECK_THROWS_WITH(pool.name(1), containing("page 1 is named"));
  pool.hold(p);
  CHECK_THROWS_WITH(pool.name(p), containing("page 0 is named: it must have one holder"));
  pool.give(p);
  pool.name(p);
  CHECK_THROWS_WITH(pool.name(p), containing("page 0 is named"));
  CHECK(pool.give(p) == page_state::cached);
  CHECK(pool.counts() == page_counts{2, 1, 0, 1, 0, 1});
  pool.hold(p);
  CHECK(pool.counts() == page_counts{2, 1, 1, 0, 0, 1});
  pool.forget(p);
  CHECK(pool.give(p) == page_state::free);

  pool.name(pool.take());
  pool.give(p);
  pool.forget(p);
  CHECK(pool.state(p) == page_state::free);
  CHECK(pool.take() == p);
  CHECK_FALSE(pool.named(p));
}

TEST_CASE("page_pool: a page is not handed out before the work that used it is done", "[pages]") {
  page_pool pool(3);
  const page_id a = pool.take(), b = pool.take(), c = pool.take();
  CHECK(pool.give(a, 5) == page_state::pending);
  CHECK(pool.give(b, 7) == page_state::pending);
  CHECK_THROWS_WITH(pool.give(c, 6), containing("page 2 is given back after 6; one was given back after 7 before"));
  CHECK_THROWS_AS(pool.take(), out_of_pages);
  pool.complete(4);
  CHECK(pool.pending() == 2);
  pool.complete(6);
  CHECK(pool.take() == a);
  CHECK_THROWS_AS(pool.take(), out_of_pages);
  pool.complete(7);
  CHECK(pool.state(b) == page_state::free);
  CHECK(pool.give(c, 3) == page_state::free);  // long done
}

TEST_CASE("page_pool: what any holder left under way is waited for", "[pages]") {
  page_pool pool(1);
  const page_id p = pool.take();
  pool.hold(p);
  CHECK(pool.give(p, 9) == page_state::used);
  CHECK(pool.give(p) == page_state::pending);
  pool.complete(8);
  CHECK(pool.pending() == 1);
  pool.complete(9);
  CHECK(pool.free() == 1);

  pool.name(pool.take());
  CHECK(pool.give(p, 10) == page_state::pending);
  pool.hold(p);
  CHECK(pool.give(p) == page_state::pending);
  std::vector<page_id> cached;
  pool.complete(10, [&](page_id q) { cached.push_back(q); });
  CHECK(cached == std::vector<page_id>{p});
  CHECK(pool.state(p) == page_state::cached);
}

TEST_CASE("page_pool: the hook hears of every page that is handed out and is free again", "[pages]") {
  std::vector<std::pair<page_id, page_event>> heard;
  page_pool pool(2, {&heard, [](void* self, page_id p, page_event e) {
                       static_cast<decltype(heard)*>(self)->push_back({p, e});
                     }});
  pool.take();
  pool.hold(0);
  pool.take();
  pool.give(0);
  pool.give(0, 1);
  pool.name(1);
  pool.give(1);
  CHECK(heard.size() == 2);
  pool.complete(1);
  pool.forget(1);
  CHECK(heard == decltype(heard){
                     {0, page_event::taken}, {1, page_event::taken}, {0, page_event::freed}, {1, page_event::freed}});
}

TEST_CASE("page_pool: what no pool can be is refused", "[pages]") {
  CHECK_THROWS_WITH(page_pool(-1), containing("a pool of -1 pages"));
  CHECK_THROWS_WITH(page_pool(page_pool::most_pages + 1), containing("a pool of 2147483393 pages"));
}

TEST_CASE("page_pool: random verbs against a model", "[pages]") {
  std::mt19937 random(7);
  const auto below = [&](idx n) { return idx(random() % std::size_t(n)); };
  for (const idx pages : {1, 2, 17, 300}) {
    page_pool pool(pages);
    pool_model model;
    completion newest = 0;
    idx most_used = 0;
    // Does what is legal, and sees what is not refused.
    const auto verb = [&](bool legal, auto&& real, auto&& meant) {
      if (legal) {
        real();
        meant();
      } else {
        REQUIRE_THROWS_AS(real(), error);
      }
    };
    for (int i = 0; i < 30'000; ++i) {
      const page_id p = page_id(below(pages));
      const auto known = model.pages.find(p);
      pool_model::page* const m = known == model.pages.end() ? nullptr : &known->second;
      const bool used = m && m->holders > 0;
      switch (below(6)) {
        case 0: {
          page_id taken = -1;
          verb(
              idx(model.pages.size()) < pages, [&] { taken = pool.take(); },
              [&] { REQUIRE(model.pages.emplace(taken, pool_model::page{1}).second); });
          break;
        }
        case 1:
          verb(
              used || (m && m->named), [&] { pool.hold(p); },
              [&] { m->left = m->left || (m->holders == 0 && m->work > model.done), ++m->holders; });
          break;
        case 2:
          verb(
              used && !m->named && m->holders == 1, [&] { pool.name(p); }, [&] { m->named = true; });
          break;
        case 3:
          verb(
              m && m->named, [&] { pool.forget(p); }, [&] { m->named = false; });
          break;
        case 4: {
          const completion after = below(2) ? newest + completion(below(3)) : 0;
          verb(
              used, [&] { pool.give(p, after); },
              [&] {
                newest = std::max(newest, after);
                if (--m->holders > 0) {
                  m->left = m->left || after > model.done;
                } else {
                  m->work = m->left ? newest : after;
                  m->left = false;
                }
              });
          break;
        }
        default:
          if (below(4)) break;
          model.done = std::max(model.done, newest - std::min(newest, completion(below(3))));
          pool.complete(model.done);
      }
      model.settle();
      const page_counts meant = model.counts(pages, most_used);
      most_used = std::max(most_used, meant.used);
      REQUIRE(pool.counts() == page_counts{pages, meant.free, meant.used, meant.cached, meant.pending, most_used});
      REQUIRE(meant.free + meant.used + meant.cached + meant.pending == pages);
      const auto now = model.pages.find(p);
      REQUIRE(pool.state(p) == (now == model.pages.end() ? page_state::free : model.state(now->second)));
      REQUIRE(pool.holders(p) == (now == model.pages.end() ? 0 : now->second.holders));
    }
  }
}

TEST_CASE("page_pool: a pool of fewer pages than none, or more than ids can name, is refused", "[pages]") {
  for (const idx pages : {idx(-1), idx(1) << 31, idx(1) << 62})
    CHECK_THROWS_WITH(page_pool(pages), support::containing("a pool of " + std::to_string(pages) + " pages"));
  CHECK(page_pool(0).total() == 0);
}
