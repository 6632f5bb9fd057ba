#pragma once

#include "metrics.hpp"

#include <ostream>
#include <string>
#include <vector>

namespace example {

// What came out for one policy at some positions of the text.
struct band_row {
  std::string policy;
  band positions;
  quality measured;
};

// Bands that end at these positions; the first begins at `first`. Throws std::invalid_argument where the ends do not
// ascend from there, or go beyond the `positions` that are read.
std::vector<band> bands_until(const std::vector<int>& ends, int first, int positions);

// For people: a line for each policy, a column for each band. Rows are in the order of policies, then of bands.
void print_bands(std::ostream& out, const std::vector<band_row>& rows);

// For programs.
void write_bands_csv(std::ostream& out, const std::vector<band_row>& rows);

// Draws the position against the divergence there, a line for each policy.
void plot_bands(const std::string& path, const std::vector<band_row>& rows);

}  // namespace example
