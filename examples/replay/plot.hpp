#pragma once

#include "outcome.hpp"
#include "trace.hpp"

#include <string>

namespace example {

// Draws which share of the trace's blocks hits against capacity in blocks, a line for each policy, prompts alone.
void plot_hit_rates(const trace& t, const std::string& path);

// Draws which share of the prompts' tokens was found in the pool, came back from each tier, and was computed.
void plot_tiers(const outcome& o, const std::string& path);

}  // namespace example
