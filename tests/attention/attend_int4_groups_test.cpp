#include "attention/covering.hpp"

TEST_CASE("attend: grouped 4-bit keys in every layout, under every retention", "[attention]") {
  support::run_covering_format<8>();
}
