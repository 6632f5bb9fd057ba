#pragma once

#include "../session.hpp"
#include "cuda_session.cuh"

#include <kvilt/gpu/gpu.cuh>

#include <functional>
#include <memory>
#include <string>

namespace example {

// A policy with its kernels, its type erased.
struct cuda_policy {
  std::string name;
  std::function<std::unique_ptr<cuda_session>(const session_shape&, const kvilt::gpu&)> open;
};

}  // namespace example
