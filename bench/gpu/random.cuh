#pragma once

#include "device.cuh"

#include <kvilt/core/floats.hpp>

namespace bench {

/// Number i of a stream of random bits (G. Steele et al., "Fast splittable pseudorandom number generators", 2014).
__device__ inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t z = (seed << 40) + (i + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/// Number i of a stream of normal ones (G. Box, M. Muller, 1958).
__device__ inline float random_normal(std::uint64_t seed, std::uint64_t i) {
  const std::uint64_t bits = random_bits(seed, i);
  const float u = (float(bits >> 40) + 0.5f) * 0x1p-24f, turn = float(bits & 0xffffffu) * 0x1p-23f;
  return sqrtf(-2.0f * logf(u)) * cospif(turn);
}

template <class T>
__global__ void fill_normal_kernel(T* to, idx count, float deviation, std::uint64_t seed) {
  const idx step = idx(gridDim.x) * blockDim.x;
  for (idx i = idx(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    kvilt::store(to[i], deviation * random_normal(seed, std::uint64_t(i)));
}

/// to: [count] of a caller's element type.
template <class T>
device_array<T> random_array(idx count, std::uint64_t seed, float deviation = 1) {
  device_array<T> to(count);
  fill_normal_kernel<<<blocks_of(8), 256>>>(to.data(), count, deviation, seed);
  check(cudaGetLastError(), "a launch");
  check(cudaDeviceSynchronize(), "random numbers");
  return to;
}

}  // namespace bench
