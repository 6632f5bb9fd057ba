#pragma once

#include "plan.hpp"

#include <string>

namespace example {

// For people: a row for each group of layers, the sum, and what fits.
std::string plan_table(const model_shape& model, const plan_request& request, const model_plan& plan);

// For programs: the same numbers, in bytes.
std::string plan_json(const model_shape& model, const model_plan& plan);

}  // namespace example
