#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/types.hpp>

#include <cuda_runtime.h>

#include <cstddef>

namespace kvilt::inline KVILT_ABI {

/// The device backend, where `host` stands in the host's verbs: a stream of the current device. A `cudaStream_t` is one.
class gpu {
 public:
  gpu(cudaStream_t stream = nullptr) : stream_(stream) {}

  cudaStream_t stream() const { return stream_; }

  /// A promise that makes attention begin sooner: what it reads of the cache, but for the tokens of its own step, what its
  /// variant's `tiles` reads, and the step's plan were written before the kernel that comes last before it in the stream,
  /// and that kernel lets no other start before those before it have ended. So it is in a model's layers, where that is
  /// this library's `append`, or an ordinary kernel.
  gpu with_early_reads() const {
    gpu other = *this;
    other.reads_early_ = true;
    return other;
  }
  bool reads_early() const { return reads_early_; }

 private:
  cudaStream_t stream_;
  bool reads_early_ = false;
};

namespace detail {

/// Throws `device_error` with what was tried and CUDA's own words.
inline void check_cuda(cudaError_t status, const char* what) {
  expects<device_error>(status == cudaSuccess, what, ": ", cudaGetErrorString(status));
}

/// What decides the shape of a launch, of the current device.
struct device_limits {
  int processors = 0;    // multiprocessors
  int shared_bytes = 0;  // of one block, at most, asked for

  static device_limits current() {
    int device = 0;
    check_cuda(cudaGetDevice(&device), "which device is current");
    const auto get = [&](cudaDeviceAttr what) {
      int value = 0;
      check_cuda(cudaDeviceGetAttribute(&value, what, device), "an attribute of the current device");
      return value;
    };
    device_limits limits;
    limits.processors = get(cudaDevAttrMultiProcessorCount);
    limits.shared_bytes = get(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    return limits;
  }
};

/// Was the kernel compiled with `wait_for_earlier_kernels` in it, for sm_90 or newer? Not so where the driver compiles
/// older PTX for a newer device.
template <class Kernel>
bool waits(Kernel* kernel) {
#if defined(__CUDA_ARCH_LIST__)
  constexpr int architectures[] = {__CUDA_ARCH_LIST__};
  bool all = true;
  for (const int a : architectures) all = all && a >= 900;
  if (all) return true;
#endif
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)), "attributes of a kernel");
  return attributes.ptxVersion >= 90;
}

/// Launches `kernel`. With `overlapped` it may start while the kernel before it in the stream still runs, and must call
/// `wait_for_earlier_kernels` before it touches what that kernel writes.
template <class... Parameters, class... Arguments>
void launch(const gpu& exec, void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
            bool overlapped, const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared_bytes > 48 * 1024)
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    int(shared_bytes)),
               "shared memory for a kernel");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = exec.stream();
  config.attrs = &attribute;
  config.numAttrs = overlapped && waits(kernel) ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), "the launch of a kernel");
}

/// In a kernel that was launched `overlapped`: what the kernels before it wrote is there after this.
__device__ inline void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The next kernel may start. NOTE: after `wait_for_earlier_kernels`, so that all but one kernel before any are complete.
__device__ inline void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits unless `waited`, and lets the next kernel start. What is in the multiprocessor's first-level cache from before
/// is not read again.
__device__ inline void end_early_reads(bool& waited) {
  if (waited) return;
  wait_for_earlier_kernels();
  __threadfence();
  let_next_kernel_start();
  waited = true;
}

}  // namespace detail
}  // namespace kvilt::inline KVILT_ABI
