#pragma once

#include "cuda_policy.cuh"

#include <vector>

namespace example {

// Every `cuda_parts`-th policy of the list, from number `Part` on. Each part is a source of its own: kernels take minutes
// to compile, and so they do it beside each other.
inline constexpr int cuda_parts = KVILT_CUDA_PARTS;
template <int Part>
void add_cuda_policies(std::vector<cuda_policy>& to);

}  // namespace example
