#pragma once

#include "../backend.hpp"
#include "transformer.hpp"

#include <memory>

namespace example {

// Throws std::runtime_error where this program was built without CUDA, or the machine has no GPU.
void require_cuda();

// The model on the current GPU, its weights copied there. `most_step`: tokens of a step, at most.
std::unique_ptr<backend> open_cuda_backend(const transformer& model, int most_step);

}  // namespace example
