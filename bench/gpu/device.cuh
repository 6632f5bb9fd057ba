#pragma once

#include <kvilt/gpu/gpu.cuh>

#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

/// What the GPU's benchmarks do with a device: own memory of it, and time work on it.
namespace bench {

using kvilt::idx;

inline void check(cudaError_t status, const char* what) {
  kvilt::detail::check_cuda(status, what);
}

/// Memory of the current device. NOTE: its verbs wait for the device, since no stream of ours waits for theirs.
template <class T>
class device_array {
 public:
  device_array() = default;
  explicit device_array(idx count) : count_(count) {
    if (count > 0) check(cudaMalloc(&data_, bytes()), "memory of the device");
  }
  explicit device_array(const std::vector<T>& from) : device_array(idx(from.size())) {
    if (count_ > 0) check(cudaMemcpy(data_, from.data(), bytes(), cudaMemcpyHostToDevice), "a copy to the device");
    check(cudaDeviceSynchronize(), "a copy to the device");
  }
  device_array(device_array&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  device_array& operator=(device_array other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~device_array() { cudaFree(data_); }

  T* data() const { return data_; }
  idx size() const { return count_; }
  std::size_t bytes() const { return std::size_t(count_) * sizeof(T); }

  /// Every byte; 0xff makes a NaN of any float.
  void fill(int byte) {
    check(cudaMemset(data_, byte, bytes()), "filling memory of the device");
    check(cudaDeviceSynchronize(), "filling memory of the device");
  }
  std::vector<T> copied() const {
    std::vector<T> to(std::size_t(count_), T{});
    check(cudaMemcpy(to.data(), data_, bytes(), cudaMemcpyDeviceToHost), "a copy from the device");
    return to;
  }

 private:
  T* data_ = nullptr;
  idx count_ = 0;
};

class stream {
 public:
  stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"); }
  stream(const stream&) = delete;
  ~stream() { cudaStreamDestroy(stream_); }

  operator cudaStream_t() const { return stream_; }
  operator kvilt::gpu() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "work of a stream"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Work of one stream, captured once: `work()` launches it.
class graph {
 public:
  template <class Work>
  graph(const stream& on, Work&& work) : stream_(on) {
    check(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal), "the beginning of a graph");
    work();
    cudaGraph_t captured = nullptr;
    check(cudaStreamEndCapture(on, &captured), "the end of a graph");
    const cudaError_t made = cudaGraphInstantiate(&graph_, captured, 0);
    cudaGraphDestroy(captured);
    check(made, "a graph");
  }
  graph(const graph&) = delete;
  ~graph() { cudaGraphExecDestroy(graph_); }

  void launch() const { check(cudaGraphLaunch(graph_, stream_), "the launch of a graph"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

template <int Unused = 0>
__global__ void spin_kernel(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

/// Times graphs by the device's own clock.
class stopwatch {
 public:
  stopwatch() {
    check(cudaEventCreate(&start_), "an event");
    check(cudaEventCreate(&end_), "an event");
  }
  stopwatch(const stopwatch&) = delete;
  ~stopwatch() {
    cudaEventDestroy(start_);
    cudaEventDestroy(end_);
  }

  /// Seconds of one launch. NOTE: the device is kept busy until the host has launched everything, so that no time of
  /// the host's is in it.
  double seconds_of(const stream& on, const graph& work) const {
    spin_kernel<><<<1, 1, 0, on>>>(100000);
    check(cudaGetLastError(), "a launch");
    check(cudaEventRecord(start_, on), "an event");
    work.launch();
    check(cudaEventRecord(end_, on), "an event");
    on.wait();
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start_, end_), "the time between events");
    return double(milliseconds) * 1e-3;
  }

 private:
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

inline double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + std::ptrdiff_t(x.size() / 2), x.end());
  return x[x.size() / 2];
}

/// Seconds that the graph takes: the median of some launches after one that does not count.
inline double median_seconds(const stream& on, const graph& work, int runs) {
  const stopwatch watch;
  work.launch();
  on.wait();
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) seconds.push_back(watch.seconds_of(on, work));
  return median(std::move(seconds));
}

/// What the current device calls itself, without commas.
inline std::string device_name() {
  int device = 0;
  cudaDeviceProp properties{};
  check(cudaGetDevice(&device), "which device is current");
  check(cudaGetDeviceProperties(&properties, device), "properties of the current device");
  std::string name = properties.name;
  std::replace(name.begin(), name.end(), ',', ' ');
  return name;
}

/// Blocks that fill the device, `per_processor` on each multiprocessor.
inline unsigned blocks_of(int per_processor) {
  return unsigned(per_processor * kvilt::detail::device_limits::current().processors);
}

}  // namespace bench
