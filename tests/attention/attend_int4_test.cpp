#include "attention/covering.hpp"

TEST_CASE("attend: 4-bit keys in every layout, under every retention", "[attention]") {
  support::run_covering_format<7>();
}
