// Checked mode is a property of a whole program: this file is one by itself.
#ifndef KVILT_CHECKED
#define KVILT_CHECKED 1
#endif
#undef KVILT_KERNELS_ELSEWHERE  // those compiled for the other tests are of their mode
#include "support/catch.hpp"
#include "support/foreign.hpp"

#include <kvilt/kvilt.hpp>

namespace {

using namespace kvilt;
using namespace support;

constexpr int heads = 2, page = 4, pages = 12;

// A layout that contradicts itself.
struct stuck {
  static constexpr int min_run = 1;
  place locate(int, int, idx) const { return {0, 0, 0}; }
};

template <class Layout>
using body_of = segment<Layout, interval<part::body, keep_all>, q8<>, fp16<>>;

// Two sequences of 10 tokens in pages 0 to 2 and 3 to 5, and one thing wrong.
struct engine {
  foreign_pool<q8<>, fp16<>> pool{q8<>(16), fp16<>(16), heads, page, pages, arrangement::four_pools};
  std::vector<page_id> table = foreign_table(2, 6, {3, 3}, page_order::up);
  geometry planes = pool.planes(0);
  planned_step planned{host(), {0, 0}, {10, 10}, {}, 16, 16};
  std::vector<step_item> items{planned->items, planned->items + 2};
  tensor<float> rows = random_tensor(1, 20, heads, 16);

  template <class Layout>
  void run_in(const Layout& layout) {
    step s = planned;
    s.items = items.data();
    const auto v = make_view<memory_space::host>(
        heads, body_of<Layout>{layout, interval<part::body, keep_all>(), q8<>(16), fp16<>(16), planes});
    answer<> a(20, heads, 16);
    const auto unwritten = a.lse;
    try {
      append(host(), v, s, rows.rows(), rows.rows());
    } catch (const invalid_argument&) {
      // The other verb says the same.
      CHECK_THROWS_AS(attention{causal{}}(host(), v, s, rows.rows(), a.out.rows(), a.lse_rows()), invalid_argument);
      CHECK(same_bits(a.lse, unwritten));
      throw;
    }
    attention{causal{}}(host(), v, s, rows.rows(), a.out.rows(), a.lse_rows());
  }
  void run() { run_in(paged<>(page, table.data(), 6)); }
};

}  // namespace

TEST_CASE("checked: what is right is let through, garbage that no live slot uses included", "[checked]") {
  static_assert(KVILT_IS_CHECKED == 1);
  CHECK_NOTHROW(engine().run());
}

TEST_CASE("checked: a page that is not there is named", "[checked]") {
  engine e;
  e.table[6 + 2] = -1;
  CHECK_THROWS_WITH(e.run(), containing("sequence 1, token 8 (slot 8) is on page -1; the pool has pages 0 to 11"));
  e.table[6 + 2] = pages;
  CHECK_THROWS_WITH(e.run(), containing("sequence 1, token 8 (slot 8) is on page 12; the pool has pages 0 to 11"));
  e.table[6 + 2] = pages - 1;
  CHECK_NOTHROW(e.run());
}

TEST_CASE("checked: without a pool's size a page may be any but a negative one", "[checked]") {
  engine e;
  e.planes.pages = 0;
  CHECK_NOTHROW(e.run());
  e.table[0] = -1;
  CHECK_THROWS_WITH(e.run(), containing("sequence 0, token 0 (slot 0) is on page -1"));
}

TEST_CASE("checked: lengths that shrink or are negative are named", "[checked]") {
  engine e;
  e.items[1].n.before = 11;
  CHECK_THROWS_WITH(e.run(), containing("sequence 1 goes from 11 to 10 tokens"));
  e.items[1].n = {-1, 10, -1, 10};
  CHECK_THROWS_WITH(e.run(), containing("sequence 1 goes from -1 to 10 tokens"));
}

TEST_CASE("checked: a layout's own mistakes are named", "[checked]") {
  engine e;
  CHECK_THROWS_WITH(e.run_in(stuck{}),
                    containing("sequence 0, token 0 is at row 0 of page 0 with runs of 10 and 0 rows"));
}

TEST_CASE("checked: an owner's own steps are let through, whatever the policy", "[checked]") {
  using kv = policy<paged<3>, rotated<q4<>>, q8<>, window<dynamic, 3>, 3, 5>;
  cache<kv> owner({.layers = 1, .kv_heads = heads, .tokens = 60, .max_step = 4}, host_memory(),
                  kv(rotated<q4<>>(16), q8<>(16), window<dynamic, 3>(9)));
  const sequence s = owner.open();
  owner.reserve(s, 40);
  std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
  const tensor<float> rows = random_tensor(1, 4, heads, 16);
  in_chunks(40, 4, [&](idx, int count) {
    const step st = owner.begin(host(), {&s, 1}, {&count, 1}, workspace);
    answer<> a(count, heads, 16);
    CHECK_NOTHROW(append(host(), owner.view(0), st, rows.rows(), rows.rows()));
    CHECK_NOTHROW(attention{causal{}}(host(), owner.view(0), st, rows.rows(), a.out.rows(), a.lse_rows()));
    owner.commit(st);
  });
}
