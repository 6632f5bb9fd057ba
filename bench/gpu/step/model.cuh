#pragma once

#include "../device.cuh"
#include "../random.cuh"
#include "cache.cuh"

#include <cublas_v2.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

using number = kvilt::bfloat16;

inline void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string(what) + ": cuBLAS says " + cublasGetStatusString(status));
}

inline constexpr int row_threads = 256;

/// The sum over the block's threads, everyone's.
__device__ inline float block_sum(float x) {
  __shared__ float of_warps[row_threads / 32];
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < row_threads / 32; ++i) sum += of_warps[i];
  return sum;
}

/// hidden += added, where that is given; to = hidden / its root mean square. A block a row of [batch][Dim].
template <int Dim>
__global__ void __launch_bounds__(row_threads) add_and_norm_kernel(number* hidden, const number* added, number* to) {
  constexpr int each = Dim / row_threads;
  const idx row = idx(blockIdx.x) * Dim;
  float x[each], squares = 0;
  for (int i = 0; i < each; ++i) {
    const idx at = row + i * row_threads + threadIdx.x;
    x[i] = kvilt::load(hidden[at]) + (added ? kvilt::load(added[at]) : 0.0f);
    squares += x[i] * x[i];
    kvilt::store(hidden[at], x[i]);
  }
  const float scale = rsqrtf(block_sum(squares) / Dim + 1e-5f);
  for (int i = 0; i < each; ++i) kvilt::store(to[row + i * row_threads + threadIdx.x], x[i] * scale);
}

/// to = gate * sigmoid(gate) * up. both: [batch]{gate [Dim] | up [Dim]}
template <int Dim>
__global__ void __launch_bounds__(row_threads) swiglu_kernel(const number* both, number* to) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  const idx row = blockIdx.y;
  const float gate = kvilt::load(both[row * 2 * Dim + i]), up = kvilt::load(both[row * 2 * Dim + Dim + i]);
  kvilt::store(to[row * Dim + i], gate * up / (1 + expf(-gate)));
}

/// A model of Llama 3 8B's shape, its weights random: one step of a batch.
class model {
 public:
  static constexpr int hidden = 4096, inner = 14336, vocabulary = 128256;

  model(const stream& on, const attention_shape& s) : stream_(on), shape_(s) {
    check(cublasCreate(&blas_), "cuBLAS");
    check(cublasSetStream(blas_, on), "cuBLAS's stream");
    // NOTE: of our own, so that a captured graph uses no memory that cuBLAS would ask for.
    check(cublasSetWorkspace(blas_, workspace_.data(), workspace_.bytes()), "cuBLAS's workspace");
    for (int i = 0; i < s.layers; ++i) {
      const std::uint64_t seed = 100 + 4 * std::uint64_t(i);
      layers_.push_back({weights(s.qkv, hidden, seed), weights(hidden, s.q_heads * s.dim, seed + 1),
                         weights(2 * inner, hidden, seed + 2), weights(hidden, inner, seed + 3)});
    }
  }
  model(const model&) = delete;
  ~model() { cublasDestroy(blas_); }

  idx weight_bytes() const {
    idx bytes = idx(head_.bytes());
    for (const layer& l : layers_) bytes += idx(l.qkv.bytes() + l.out.bytes() + l.up.bytes() + l.down.bytes());
    return bytes;
  }

  /// One token of every sequence. cache null: all but what has to do with the cache.
  void step(step_cache* cache) {
    check(cudaMemcpyAsync(x_.data(), embedded_.data(), x_.bytes(), cudaMemcpyDeviceToDevice, stream_), "the input");
    if (cache) cache->begin(stream_);
    const number* added = nullptr;
    for (int i = 0; i < shape_.layers; ++i) {
      const layer& l = layers_[std::size_t(i)];
      add_and_norm(added);
      multiply(l.qkv, normed_, qkv_);
      if (cache) cache->attend(stream_, i, qkv_.data(), attended_.data());
      multiply(l.out, attended_, projected_);
      add_and_norm(projected_.data());
      multiply(l.up, normed_, both_);
      swiglu_kernel<inner>
          <<<dim3(inner / row_threads, unsigned(shape_.batch)), row_threads, 0, stream_>>>(both_.data(), inner_.data());
      check(cudaGetLastError(), "a launch");
      multiply(l.down, inner_, projected_);
      added = projected_.data();
    }
    add_and_norm(added);
    multiply(head_, normed_, logits_);
  }

  /// Whether the last step gave numbers.
  bool finite() const {
    for (const number x : logits_.copied())
      if (!std::isfinite(kvilt::load(x))) return false;
    return true;
  }

 private:
  struct layer {
    device_array<number> qkv, out, up, down;  // [outputs][inputs]
  };

  static device_array<number> weights(int outputs, int inputs, std::uint64_t seed) {
    return random_array<number>(idx(outputs) * inputs, seed, 1 / std::sqrt(float(inputs)));
  }
  device_array<number> rows_of(int dim) const { return device_array<number>(idx(shape_.batch) * dim); }

  void add_and_norm(const number* added) {
    add_and_norm_kernel<hidden><<<unsigned(shape_.batch), row_threads, 0, stream_>>>(x_.data(), added, normed_.data());
    check(cudaGetLastError(), "a launch");
  }
  /// y = x w^T. w: [outputs][inputs]; x: [batch][inputs]; y: [batch][outputs]
  void multiply(const device_array<number>& w, const device_array<number>& x, const device_array<number>& y) {
    const int batch = shape_.batch, inputs = int(x.size() / batch), outputs = int(y.size() / batch);
    const float one = 1, zero = 0;
    // NOTE: cuBLAS's matrices are column by column: it sees w^T, x^T and y^T.
    check(cublasGemmEx(blas_, CUBLAS_OP_T, CUBLAS_OP_N, outputs, batch, inputs, &one, w.data(), CUDA_R_16BF, inputs,
                       x.data(), CUDA_R_16BF, inputs, &zero, y.data(), CUDA_R_16BF, outputs, CUBLAS_COMPUTE_32F,
                       CUBLAS_GEMM_DEFAULT),
          "a product of matrices");
  }

  const stream& stream_;
  attention_shape shape_;
  cublasHandle_t blas_ = nullptr;
  device_array<unsigned char> workspace_{idx(32) << 20};
  std::vector<layer> layers_;
  device_array<number> head_ = weights(vocabulary, hidden, 99);
  device_array<number> embedded_ = random_array<number>(idx(shape_.batch) * hidden, 98);
  device_array<number> x_ = rows_of(hidden), normed_ = rows_of(hidden), projected_ = rows_of(hidden);  // [batch][…]
  device_array<number> qkv_ = rows_of(attention_shape::qkv);
  device_array<number> attended_ = random_array<number>(idx(shape_.batch) * hidden, 97);
  device_array<number> both_ = rows_of(2 * inner), inner_ = rows_of(inner), logits_ = rows_of(vocabulary);
};

}  // namespace bench
