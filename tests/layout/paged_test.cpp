#include "support/catch.hpp"

#include <kvilt/layout/paged.hpp>

#include <cstdint>
#include <random>
#include <tuple>
#include <type_traits>
#include <vector>

namespace {

using namespace kvilt;

template <int P>
struct fixed {
  static constexpr int page_size = P;
  static paged<P> over(const page_id* table, idx width) { return paged<P>(table, width); }
  static paged<P> unbound() { return {}; }
};
template <int P>
struct at_run_time {
  static constexpr int page_size = P;
  static paged<> over(const page_id* table, idx width) { return paged<>(P, table, width); }
  static paged<> unbound() { return paged<>(P); }
};
using kinds =
    std::tuple<fixed<1>, fixed<2>, fixed<3>, fixed<16>, fixed<19>, fixed<64>, fixed<256>, at_run_time<1>,
               at_run_time<2>, at_run_time<3>, at_run_time<16>, at_run_time<19>, at_run_time<64>, at_run_time<256>>;

}  // namespace

TEMPLATE_LIST_TEST_CASE("paged: a slot lies where division says", "[layout]", kinds) {
  constexpr int size = TestType::page_size, sequences = 3;
  const idx width = 40;
  std::vector<page_id> table(std::size_t(sequences * width));
  std::mt19937 bits(5);
  for (page_id& entry : table) entry = page_id(bits() >> 1);
  const auto layout = TestType::over(table.data(), width);
  for (int sequence = 0; sequence < sequences; ++sequence)
    for (idx slot = 0; slot < width * size; ++slot) {
      const place p = layout.locate(sequence, int(slot % 4), slot);
      REQUIRE(p.page == table[std::size_t(sequence * width + slot / size)]);
      REQUIRE(p.row == slot % size);
      REQUIRE(p.run == size - slot % size);
    }
}

TEMPLATE_LIST_TEST_CASE("paged: runs lead from page to page over every slot once", "[layout]", kinds) {
  const idx width = 7, slots = width * TestType::page_size;
  const std::vector<page_id> table{6, 5, 4, 3, 2, 1, 0};
  const auto layout = TestType::over(table.data(), width);
  idx slot = 0;
  for (page_id expected = 6; slot < slots; --expected) {
    const place p = layout.locate(0, 0, slot);
    CHECK(p.page == expected);
    CHECK(p.row == 0);
    CHECK(p.run >= std::remove_cvref_t<decltype(layout)>::min_run);
    slot += p.run;
  }
  CHECK(slot == slots);
}

TEMPLATE_LIST_TEST_CASE("paged: an owner binds it to a table of its own", "[layout]", kinds) {
  const auto unbound = TestType::unbound();
  CHECK(unbound.page_rows({.sequences = 2, .slots = 1000, .kv_heads = 1}) == TestType::page_size);
  const std::vector<page_id> table{8, 9, 10, 11};
  const auto layout = unbound.bind(table.data(), 2);
  CHECK(layout.page_size() == TestType::page_size);
  CHECK(layout.locate(1, 0, TestType::page_size).page == 11);
}

TEST_CASE("paged: table entries of other slots are not looked at", "[layout]") {
  const std::vector<page_id> table{-1, 4, -1};
  const place p = paged<16>(table.data(), 3).locate(0, 0, 31);
  CHECK(p.page == 4);
  CHECK(p.row == 15);
  CHECK(paged<16>(table.data(), 3).locate(0, 0, 32).page == -1);
}

TEST_CASE("paged: offsets into the table are 64-bit", "[layout]") {
  const page_id entry = 7;
  const idx width = idx(1) << 33;
  // NOTE: the table would begin far before `entry`; its rows are as wide as an engine's address space.
  const auto begin = reinterpret_cast<std::uintptr_t>(&entry) - std::uintptr_t(width) * sizeof(page_id);
  const auto* const table = reinterpret_cast<const page_id*>(begin);  // NOLINT(performance-no-int-to-ptr)
  CHECK(paged<16>(table, width).locate(1, 0, 3).page == 7);
  CHECK(paged<>(19, table, width).locate(1, 0, 18).page == 7);
}
