#pragma once

#include "report.hpp"

#include <string>
#include <vector>

namespace example {

// Throws where `plot_front` could not draw this file: gnuplot is missing, the name ends in neither .svg nor .png, or
// the file cannot be written.
void check_plot(const std::string& path);

// Draws bytes per token of context against divergence, and the front: policies that no other beats in both.
void plot_front(const std::string& path, const std::vector<report_row>& rows);

}  // namespace example
