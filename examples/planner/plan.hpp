#pragma once

#include "model_shape.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace example {

// What is asked of the planner.
struct plan_request {
  std::string policy = "fp16";
  std::int64_t tokens = 4096;    // of one sequence
  std::optional<int> sequences;  // to be allocated at one time
  std::optional<std::int64_t> memory;
  std::int64_t weights = 0;
};

// A group's layers and their plan have the same place in the model's and the plan's groups.
struct model_plan {
  std::vector<layer_plan> groups;
  double bytes_per_token = 0;
  std::int64_t bytes_per_sequence = 0;
  std::optional<std::int64_t> cache_bytes;  // of the sequences asked for
  // What fits beside the weights; absent where the memory is not given.
  std::optional<std::int64_t> sequences, tokens;
};

// Throws std::invalid_argument where no policy has the name or no cache the shape.
model_plan plan_model(const model_shape& model, const plan_request& request);

}  // namespace example
