#pragma once

#include "../engine_wrap/cuda.hpp"

#include <kvilt/gpu/memory.hpp>

#include <cstddef>
#include <span>

namespace example {

// Numbers in device memory.
template <class T>
class cuda_array {
 public:
  explicit cuda_array(std::size_t count = 0) : bytes_(kvilt::device_memory(), count * sizeof(T)) {}
  explicit cuda_array(std::span<const T> from) : cuda_array(from.size()) { put(from); }

  T* data() const { return reinterpret_cast<T*>(bytes_.data()); }
  std::size_t size() const { return bytes_.bytes() / sizeof(T); }
  std::span<const T> span() const { return {data(), size()}; }

  // Waits for the device, since no stream of ours waits for a copy.
  void put(std::span<const T> from, std::size_t first = 0) const {
    if (from.empty()) return;
    check(cudaMemcpy(data() + first, from.data(), from.size_bytes(), cudaMemcpyHostToDevice), "a copy to the GPU");
    check(cudaDeviceSynchronize(), "a copy to the GPU");
  }
  void clear() const {
    check(cudaMemset(bytes_.data(), 0, bytes_.bytes()), "clearing the GPU's memory");
    check(cudaDeviceSynchronize(), "clearing the GPU's memory");
  }

 private:
  kvilt::buffer<kvilt::memory_space::device> bytes_;
};

}  // namespace example
