#include "support/catch.hpp"

#include <kvilt/layout/paged_by_head.hpp>

#include <random>
#include <tuple>
#include <vector>

namespace {

using namespace kvilt;

template <int P>
struct fixed {
  static constexpr int page_size = P;
  static paged_by_head<P> over(const page_id* table, idx width, int tables) { return {table, width, tables}; }
  static paged_by_head<P> unbound() { return {}; }
};
template <int P>
struct at_run_time {
  static constexpr int page_size = P;
  static paged_by_head<> over(const page_id* table, idx width, int tables) { return {P, table, width, tables}; }
  static paged_by_head<> unbound() { return paged_by_head<>(P); }
};
using kinds = std::tuple<fixed<1>, fixed<3>, fixed<16>, fixed<64>, at_run_time<1>, at_run_time<3>, at_run_time<16>,
                         at_run_time<64>>;

}  // namespace

TEMPLATE_LIST_TEST_CASE("paged_by_head: a slot lies on a page of its head's own table", "[layout]", kinds) {
  constexpr int size = TestType::page_size, sequences = 3, tables = 5;
  const idx width = 20;
  std::vector<page_id> table(std::size_t(sequences * tables * width));
  std::mt19937 bits(5);
  for (page_id& entry : table) entry = page_id(bits() >> 1);
  const auto layout = TestType::over(table.data(), width, tables);
  CHECK(layout.slots() == width * size);
  for (int sequence = 0; sequence < sequences; ++sequence)
    for (int head = 0; head < tables; ++head) {
      const page_id* const own = table.data() + (sequence * tables + head) * width;
      CHECK(layout.table(sequence, head) == sequence * tables + head);
      for (idx slot = 0; slot < width * size; ++slot) {
        const place p = layout.locate(sequence, head, slot);
        REQUIRE(p.page == own[slot / size]);
        REQUIRE(p.row == slot % size);
        REQUIRE(p.run == size - slot % size);
      }
    }
}

TEMPLATE_LIST_TEST_CASE("paged_by_head: a layer's heads are some of an owner's tables", "[layout]", kinds) {
  const auto unbound = TestType::unbound();
  CHECK(unbound.page_rows({.sequences = 2, .slots = 1000, .kv_heads = 1}) == TestType::page_size);
  const std::vector<page_id> table{0, 1, 2, 3, 4, 5, 6, 7};  // of 2 sequences, 2 layers and 2 heads
  const auto second_layer = unbound.bind(table.data() + 2, 1, 4);
  CHECK(second_layer.page_size() == TestType::page_size);
  CHECK(second_layer.locate(0, 1, 0).page == 3);
  CHECK(second_layer.locate(1, 0, 0).page == 6);
}

TEST_CASE("paged_by_head: an unbound one has no table, and one of no width needs none", "[layout]") {
  const page_id page = 0;
  CHECK_FALSE(paged_by_head<16>(nullptr, 1, 1).has_table());
  CHECK(paged_by_head<16>(&page, 1, 1).has_table());
  CHECK(paged_by_head<16>().has_table());
}
