#pragma once

#include "outcome.hpp"

#include <string>

namespace example {

// `simulated`: with utilisation, fragmentation and times, which prompts alone do not have: null in JSON.
std::string outcome_json(const outcome& o, bool simulated);
std::string outcome_table(const outcome& o, bool simulated);

// Text exposition of Prometheus, version 0.0.4.
std::string metrics_text(const kvilt::manager_counters& c);

}  // namespace example
