#pragma once

#include "support/catch.hpp"

#include <cuda_runtime_api.h>

#include <string>

namespace support {

// The first line of a test that launches kernels.
inline void require_gpu() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) skip(std::string("no GPU: ") + cudaGetErrorString(status));
  if (devices == 0) skip("no GPU");
}

}  // namespace support
