#include "attention/covering.hpp"

TEST_CASE("attend: 32-bit keys in every layout, under every retention", "[attention]") {
  support::run_covering_format<0>();
}
