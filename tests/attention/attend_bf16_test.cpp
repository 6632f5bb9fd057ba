#include "attention/covering.hpp"

TEST_CASE("attend: bfloat16 keys in every layout, under every retention", "[attention]") {
  support::run_covering_format<2>();
}
