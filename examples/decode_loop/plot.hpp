#pragma once

#include "report.hpp"

#include <string>
#include <vector>

namespace example {

// Draws bytes per token of context against divergence, and the front: policies that no other beats in both.
void plot_front(const std::string& path, const std::vector<report_row>& rows);

}  // namespace example
