#include "decode.hpp"

#include <kvilt/kvilt.hpp>

#include <cuda_runtime_api.h>

#include <iostream>

int main() {
  std::cout << "kvilt " << KVILT_VERSION_MAJOR << '.' << KVILT_VERSION_MINOR << '.' << KVILT_VERSION_PATCH << '\n';
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return 0;  // that it was built is something
  const engine::answers got = engine::decode(2, 5);
  std::cout << got.first << " (expected 2), " << got.second << " (expected 3.5)\n";
  return got.first == 2 && got.second == 3.5f ? 0 : 1;
}
