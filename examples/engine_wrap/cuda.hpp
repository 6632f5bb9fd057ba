#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

/// CUDA's handles, with an owner.
namespace example {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

/// NOTE: neither it nor the default stream waits for the other.
class stream {
 public:
  stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"); }
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;
  ~stream() { cudaStreamDestroy(stream_); }

  operator cudaStream_t() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "work of a stream"); }

 private:
  cudaStream_t stream_ = nullptr;
};

class event {
 public:
  event() { check(cudaEventCreate(&event_), "an event"); }
  event(const event&) = delete;
  event& operator=(const event&) = delete;
  ~event() { cudaEventDestroy(event_); }

  void record(cudaStream_t stream) const { check(cudaEventRecord(event_, stream), "an event"); }
  /// Microseconds from `earlier` to this one. Both have been waited for.
  double since(const event& earlier) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "the time between events");
    return 1000 * double(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// What `work()` launches in a stream, to be launched again and again.
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
  graph& operator=(const graph&) = delete;
  ~graph() { cudaGraphExecDestroy(graph_); }

  void launch() const { check(cudaGraphLaunch(graph_, stream_), "the launch of a graph"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace example
