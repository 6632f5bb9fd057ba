#include "attention/covering.hpp"

TEST_CASE("attend: 8-bit float keys in every layout, under every retention", "[attention]") {
  support::run_covering_format<3>();
}
