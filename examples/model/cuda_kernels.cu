#include "../engine_wrap/cuda.hpp"
#include "cuda_kernels.cuh"

#include <kvilt/core/math.hpp>
#include <kvilt/core/types.hpp>

namespace example::cuda {
namespace {

using kvilt::idx;

constexpr int row_threads = 256, search_threads = 1024;

// The sum over the block's threads, everyone's.
__device__ float block_sum(float x) {
  __shared__ float of_warps[row_threads / 32];
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  __syncthreads();  // everyone has read an earlier sum
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < row_threads / 32; ++i) sum += of_warps[i];
  return sum;
}

// Calls use(i) for this thread's share of a row's numbers.
template <class Use>
__device__ void each_number(int count, Use&& use) {
  for (int i = int(threadIdx.x); i < count; i += row_threads) use(i);
}

// What RMSNorm multiplies a row by, from this thread's sum of its squares.
__device__ float norm_factor(float squares, int count, float eps) {
  return 1.0f / sqrtf(block_sum(squares) / float(count) + eps);
}

// A block a token.
__global__ void __launch_bounds__(row_threads)
    embed_kernel(const float* table, const int* tokens, int hidden, float scale, float* out) {
  const float* const row = table + idx(tokens[blockIdx.x]) * hidden;
  float* const to = out + idx(blockIdx.x) * hidden;
  each_number(hidden, [&](int i) { to[i] = row[i] * scale; });
}

// A block a token.
__global__ void __launch_bounds__(row_threads)
    add_and_norm_kernel(float* residual, addition added, const float* norm, float eps, int hidden, float* out) {
  const idx row = idx(blockIdx.x) * hidden;
  float* const x = residual + row;
  if (added.rows != nullptr) {
    const float* const more = added.rows + row;
    if (added.norm != nullptr) {
      float squares = 0;
      each_number(hidden, [&](int i) { squares += more[i] * more[i]; });
      const float factor = norm_factor(squares, hidden, eps);
      each_number(hidden, [&](int i) { x[i] += more[i] * factor * added.norm[i]; });
    } else {
      each_number(hidden, [&](int i) { x[i] += more[i]; });
    }
  }
  // NOTE: a thread reads what it has written itself.
  float squares = 0;
  each_number(hidden, [&](int i) { squares += x[i] * x[i]; });
  const float factor = norm_factor(squares, hidden, eps);
  each_number(hidden, [&](int i) { out[row + i] = x[i] * factor * norm[i]; });
}

// A block a head of a token.
__global__ void __launch_bounds__(row_threads)
    norm_heads_kernel(float* heads, int stride, int q_heads, const float* q_norm, const float* k_norm, int dim,
                      float eps) {
  const int head = int(blockIdx.x);
  float* const x = heads + idx(blockIdx.y) * stride + head * dim;
  const float* const norm = head < q_heads ? q_norm : k_norm;
  float squares = 0;
  each_number(dim, [&](int i) { squares += x[i] * x[i]; });
  const float factor = norm_factor(squares, dim, eps);
  each_number(dim, [&](int i) { x[i] = x[i] * factor * norm[i]; });
}

// A thread a number; row y of the grid is token y.
__global__ void __launch_bounds__(row_threads) gate_kernel(const float* both, gate_curve curve, int ffn, float* out) {
  const int i = int(blockIdx.x * row_threads + threadIdx.x);
  if (i >= ffn) return;
  const float* const row = both + idx(blockIdx.y) * 2 * ffn;
  const float x = row[i], up = row[ffn + i];
  out[idx(blockIdx.y) * ffn + i] = x / (1.0f + expf(-x * (curve.linear + curve.cubic * x * x))) * up;
}

// A number and where it stands; of equal ones the first is the larger.
struct found {
  float number;
  int at;
};
__device__ found larger(const found& a, const found& b) {
  return b.number > a.number || (b.number == a.number && b.at < a.at) ? b : a;
}
__device__ found largest_of_warp(found x) {
  for (int step = 16; step > 0; step /= 2)
    x = larger(x, {__shfl_xor_sync(0xffffffffu, x.number, step), __shfl_xor_sync(0xffffffffu, x.at, step)});
  return x;
}

// One block.
__global__ void __launch_bounds__(search_threads) find_largest_kernel(const float* numbers, int count, int* out) {
  __shared__ found of_warps[search_threads / 32];
  found mine{numbers[0], 0};
  for (int i = int(threadIdx.x); i < count; i += search_threads) mine = larger(mine, {numbers[i], i});
  mine = largest_of_warp(mine);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  mine = largest_of_warp(of_warps[threadIdx.x]);
  if (threadIdx.x == 0) *out = mine.at;
}

void check_launch() {
  check(cudaGetLastError(), "the launch of a kernel");
}

}  // namespace

void embed(cudaStream_t on, const float* table, const int* tokens, int count, int hidden, float scale, float* out) {
  embed_kernel<<<unsigned(count), row_threads, 0, on>>>(table, tokens, hidden, scale, out);
  check_launch();
}

void add_and_norm(cudaStream_t on, float* residual, const addition& added, const float* norm, float eps, int tokens,
                  int hidden, float* out) {
  add_and_norm_kernel<<<unsigned(tokens), row_threads, 0, on>>>(residual, added, norm, eps, hidden, out);
  check_launch();
}

void norm_heads(cudaStream_t on, float* heads, int tokens, int stride, int q_heads, const float* q_norm, int kv_heads,
                const float* k_norm, int dim, float eps) {
  const dim3 grid(unsigned(q_heads + kv_heads), unsigned(tokens));
  norm_heads_kernel<<<grid, row_threads, 0, on>>>(heads, stride, q_heads, q_norm, k_norm, dim, eps);
  check_launch();
}

void apply_gate(cudaStream_t on, gate_activation kind, const float* both, int tokens, int ffn, float* out) {
  const dim3 grid(unsigned(kvilt::ceil_div(ffn, row_threads)), unsigned(tokens));
  gate_kernel<<<grid, row_threads, 0, on>>>(both, gate_curve(kind), ffn, out);
  check_launch();
}

void find_largest(cudaStream_t on, const float* numbers, int count, int* out) {
  find_largest_kernel<<<1, search_threads, 0, on>>>(numbers, count, out);
  check_launch();
}

}  // namespace example::cuda
