#pragma once

#include "session.hpp"
#include "transformer.hpp"

#include <span>
#include <vector>

namespace example {

// Reads a text with a cache that rounds nothing, and says how large K and V become in each layer and KV head of the
// model: what static scales are made of. `shape` has room for the tokens.
std::vector<layer_ranges> ranges_over(transformer& model, const session_shape& shape, std::span<const int> tokens);

}  // namespace example
