#include "attention/covering.hpp"

TEST_CASE("attend: rotated 8-bit keys in every layout, under every retention", "[attention]") {
  support::run_covering_format<6>();
}
