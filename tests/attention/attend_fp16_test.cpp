#include "attention/covering.hpp"

TEST_CASE("attend: half keys in every layout, under every retention", "[attention]") {
  support::run_covering_format<1>();
}
