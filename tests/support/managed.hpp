#pragma once

#include "support/catch.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <new>

namespace support {

/// Zeroed memory that host and device share.
template <class T>
class managed {
 public:
  explicit managed(std::size_t size) : size_(size) {
    void* data = nullptr;
    if (cudaMallocManaged(&data, bytes() ? bytes() : 1) != cudaSuccess) throw std::bad_alloc();
    data_ = static_cast<T*>(data);
    if (cudaMemset(data, 0, bytes()) != cudaSuccess) throw std::bad_alloc();
  }
  managed(const managed&) = delete;
  managed& operator=(const managed&) = delete;
  ~managed() { cudaFree(data_); }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  T& operator[](std::size_t i) const { return data_[i]; }

 private:
  std::size_t size_;
  T* data_ = nullptr;
};

/// Waits for the kernels launched so far, which must have succeeded.
inline void finish_kernels() {
  REQUIRE(cudaGetLastError() == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
}

}  // namespace support
