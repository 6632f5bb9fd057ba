#pragma once

#include "support/catch.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace support {

// Ends the test where CUDA refuses something.
inline void must(cudaError_t status, const char* what) {
  if (status != cudaSuccess) FAIL(what << ": " << cudaGetErrorString(status));
}

// Device memory, full of 0xff until something is put there (NaN as a float, -1 as a number), between two lines that
// nobody may touch.
template <class T>
class device_array {
  static constexpr std::size_t guard = 256;

 public:
  explicit device_array(std::size_t size) : size_(size) {
    void* at = nullptr;
    must(cudaMalloc(&at, bytes() + 2 * guard), "memory of the device");
    all_ = static_cast<unsigned char*>(at);
    must(cudaMemset(all_, 0xff, bytes() + 2 * guard), "poison on the device");
  }
  explicit device_array(std::span<const T> from) : device_array(from.size()) { put(from); }
  device_array(device_array&& other) noexcept : size_(other.size_), all_(std::exchange(other.all_, nullptr)) {}
  device_array& operator=(device_array&&) = delete;
  ~device_array() { cudaFree(all_); }

  T* data() const { return reinterpret_cast<T*>(all_ + guard); }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  std::span<T> span() const { return {data(), size_}; }

  void put(std::span<const T> from) const {
    must(cudaMemcpy(data(), from.data(), from.size_bytes(), cudaMemcpyHostToDevice), "a copy to the device");
  }
  std::vector<T> get() const {
    std::vector<T> to(size_);
    must(cudaMemcpy(to.data(), data(), bytes(), cudaMemcpyDeviceToHost), "a copy from the device");
    return to;
  }
  void poison() const { must(cudaMemset(all_, 0xff, bytes() + 2 * guard), "poison on the device"); }
  // Nothing was written before or after.
  bool guarded() const {
    std::vector<unsigned char> all(bytes() + 2 * guard);
    must(cudaMemcpy(all.data(), all_, all.size(), cudaMemcpyDeviceToHost), "a copy from the device");
    for (std::size_t i = 0; i < guard; ++i)
      if (all[i] != 0xff || all[all.size() - 1 - i] != 0xff) return false;
    return true;
  }

 private:
  std::size_t size_;
  unsigned char* all_ = nullptr;
};

}  // namespace support
