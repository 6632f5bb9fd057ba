#pragma once

#include "metrics.hpp"
#include "policies.hpp"

#include <kvilt/core/types.hpp>

#include <ostream>
#include <string>
#include <vector>

namespace example {

// What a policy is and takes: what every table's lines begin with.
struct policy_line {
  std::string policy;
  policy_columns columns;
  double bytes_per_token = 0;  // planned, while every layer keeps the token
  kvilt::idx cache_bytes = 0;  // allocated
};

// A line of a table, and the words of a policy's.
using cells = std::vector<std::string>;
cells policy_headings();
cells policy_cells(const policy_line& line);

// Columns as wide as their widest cell, those of the policy's names on the left. Lines have the first one's cells.
void print_aligned(std::ostream& out, const std::vector<cells>& lines);

// The same for programs: the columns' names, and one policy's line, without what stands behind them.
inline constexpr const char* policy_csv_columns =
    "policy,k_format,v_format,layout,retention,sinks16,tail16,bytes_per_token,cache_bytes";
std::string policy_csv(const policy_line& line);

// What came out for one policy.
struct report_row : policy_line {
  kvilt::idx positions = 0;  // that the cache was allocated for
  quality measured;
  double tokens_per_second = 0;
  bool integer_decoding = false;  // that rate's; everything else is measured in fp32
};

// For people: aligned columns.
void print_table(std::ostream& out, const std::vector<report_row>& rows);

// For programs.
void write_csv(std::ostream& out, const std::vector<report_row>& rows);

}  // namespace example
