#pragma once

#include "metrics.hpp"
#include "policies.hpp"

#include <kvilt/core/types.hpp>

#include <ostream>
#include <string>
#include <vector>

namespace example {

// What came out for one policy.
struct report_row {
  std::string policy;
  policy_columns columns;
  double bytes_per_token = 0;  // planned, while every layer keeps the token
  kvilt::idx cache_bytes = 0;  // allocated
  kvilt::idx positions = 0;    // that the cache was allocated for
  quality measured;
  double tokens_per_second = 0;
  bool integer_decoding = false;  // that rate's; everything else is measured in fp32
};

// For people: aligned columns.
void print_table(std::ostream& out, const std::vector<report_row>& rows);

// For programs.
void write_csv(std::ostream& out, const std::vector<report_row>& rows);

}  // namespace example
