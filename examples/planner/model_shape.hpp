#pragma once

#include "layer_plan.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace example {

// As much of a model as a budget needs.
struct model_shape {
  std::string name;
  std::vector<layer_group> groups;
  std::int64_t weight_bytes;  // with 16-bit weights, or of the file
};

const std::vector<std::string>& preset_names();

// The published shape of a model that preset_names lists.
model_shape preset_shape(std::string_view name);

// From the metadata of a GGUF file of any architecture; no tensor is read. Throws model_error.
model_shape read_model_shape(const std::string& path);

}  // namespace example
