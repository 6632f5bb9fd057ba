#pragma once

#include "probe.hpp"
#include "report.hpp"

#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace example {

// What came out for one policy: over all depths, and at each.
struct probe_row : policy_line {
  probe_result all;
  std::vector<std::pair<double, probe_result>> depths;
};

// One probe's rows, the first of a cache that keeps all of the text.
struct probe_report {
  std::string probe;
  std::vector<probe_row> rows;
};

// For people: aligned columns, and a line on what the whole text gave.
void print_probe(std::ostream& out, const probe_report& report);

// For programs: of each probe and policy a line over all depths, and one for each.
void write_probes_csv(std::ostream& out, const std::vector<probe_report>& reports);

}  // namespace example
