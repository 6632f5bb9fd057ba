#pragma once

#include <kvilt/core/memory.hpp>

#include <cuda_runtime_api.h>

/// \file
/// Where an owner gets memory of a GPU, and page-locked memory. Needs the CUDA Toolkit's headers, not nvcc.

namespace kvilt::inline KVILT_ABI {
namespace detail {

/// What CUDA's allocators give at the least.
inline constexpr std::size_t cuda_alignment = 256;

/// Throws `out_of_pages` where memory is short, and `device_error` where something else is wrong.
inline void check_allocation(cudaError_t status, const char* what, std::size_t bytes) {
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // the next call is not to hear of it
    expects<out_of_pages>(false, what, " has no ", bytes, " bytes");
  }
  expects<device_error>(status == cudaSuccess, bytes, " bytes of ", what, ": ", cudaGetErrorString(status));
}

inline void check_alignment(std::size_t align) {
  expects(align <= cuda_alignment, "memory on lines of ", align, " bytes; CUDA's is on lines of ", cuda_alignment);
}

}  // namespace detail

/// Memory of the device that is current when it is allocated; given back whichever is current then. Throws
/// `out_of_pages` with the bytes that are not there, and `device_error`.
inline memory<memory_space::device> device_memory() {
  return memory<memory_space::device>(
      nullptr,
      [](void*, std::size_t bytes, std::size_t align) {
        detail::check_alignment(align);
        void* block = nullptr;
        detail::check_allocation(cudaMalloc(&block, bytes), "the current device's memory", bytes);
        return block;
      },
      [](void*, void* block, std::size_t, std::size_t) noexcept { (void)cudaFree(block); });
}

/// Page-locked memory of the host, which every device reads where it lies and copies from without the host's waiting.
/// Throws as `device_memory`.
inline memory<memory_space::host> pinned_memory() {
  return memory<memory_space::host>(
      nullptr,
      [](void*, std::size_t bytes, std::size_t align) {
        detail::check_alignment(align);
        void* block = nullptr;
        detail::check_allocation(cudaMallocHost(&block, bytes), "page-locked memory", bytes);
        return block;
      },
      [](void*, void* block, std::size_t, std::size_t) noexcept { (void)cudaFreeHost(block); });
}

}  // namespace kvilt::inline KVILT_ABI
