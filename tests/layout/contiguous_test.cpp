#include "support/catch.hpp"

#include <kvilt/layout/contiguous.hpp>

namespace {

using namespace kvilt;

}  // namespace

TEST_CASE("contiguous: a sequence's slots follow each other in its own page", "[layout]") {
  const contiguous layout{100};
  for (const int sequence : {0, 3})
    for (const idx slot : {0, 1, 50, 99}) {
      const place p = layout.locate(sequence, 5, slot);
      CHECK(p.page == sequence);
      CHECK(p.row == slot);
      CHECK(p.run == 100 - slot);
    }
}

TEST_CASE("contiguous: an owner gets one page of all slots for each sequence", "[layout]") {
  const layout_request request{.sequences = 3, .slots = 70, .kv_heads = 2};
  CHECK(contiguous().pages(request) == 3);
  CHECK(contiguous().page_rows(request) == 70);
  CHECK(contiguous().bind(request).capacity == 70);
  CHECK(contiguous().page_rows({.sequences = 3, .slots = 0, .kv_heads = 2}) == 1);
}

TEST_CASE("contiguous: two billion slots", "[layout]") {
  const contiguous layout{(idx(1) << 31) - 1};
  const place p = layout.locate(0, 0, (idx(1) << 31) - 2);
  CHECK(p.row == 2147483646);
  CHECK(p.run == 1);
}
