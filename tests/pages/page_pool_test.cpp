#include "support/catch.hpp"

#include <kvilt/pages/page_pool.hpp>

#include <random>
#include <set>
#include <vector>

namespace {

using namespace kvilt;

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

TEST_CASE("page_pool: random takes and gives against a set", "[pages]") {
  std::mt19937 random(7);
  for (const idx pages : {1, 2, 17, 300}) {
    page_pool pool(pages);
    std::set<page_id> held;
    for (int i = 0; i < 20'000; ++i) {
      const page_id p = page_id(random() % std::size_t(pages));
      const bool taking = random() % 2 == 0;
      if (taking && idx(held.size()) == pages) {
        REQUIRE_THROWS_AS(pool.take(), out_of_pages);
      } else if (taking) {
        const page_id taken = pool.take();
        REQUIRE(taken >= 0);
        REQUIRE(taken < pages);
        REQUIRE(held.insert(taken).second);
      } else if (held.erase(p)) {
        pool.give(p);
      } else {
        REQUIRE_THROWS_AS(pool.give(p), invalid_argument);
      }
      REQUIRE(pool.used() == idx(held.size()));
      REQUIRE(pool.free() + pool.used() == pages);
      REQUIRE(pool.total() == pages);
    }
  }
}

TEST_CASE("page_pool: a pool of fewer pages than none, or more than ids can name, is refused", "[pages]") {
  for (const idx pages : {idx(-1), idx(1) << 31, idx(1) << 62})
    CHECK_THROWS_WITH(page_pool(pages), support::containing("a pool of " + std::to_string(pages) + " pages"));
  CHECK(page_pool(0).total() == 0);
}
