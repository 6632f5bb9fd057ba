#pragma once

#include "activations.hpp"

#include <cuda_runtime_api.h>

// What a transformer computes beside its matrix products and attention, on a stream; all pointers are the device's.
namespace example::cuda {

// The embeddings of some tokens: table [vocab][hidden], out [count][hidden].
void embed(cudaStream_t on, const float* table, const int* tokens, int count, int hidden, float scale, float* out);

// What a block adds to the residual stream: [tokens][hidden], normalised before where there is a norm for it.
struct addition {
  const float* rows = nullptr;  // null: nothing is added
  const float* norm = nullptr;  // [hidden], or null
};

// residual += what is added; out = RMSNorm of it, with `norm` [hidden]. residual and out [tokens][hidden]
void add_and_norm(cudaStream_t on, float* residual, const addition& added, const float* norm, float eps, int tokens,
                  int hidden, float* out);

// RMSNorm of heads in place: of each token the first q_heads with q_norm [dim], the kv_heads after them with k_norm;
// tokens are `stride` numbers apart.
void norm_heads(cudaStream_t on, float* heads, int tokens, int stride, int q_heads, const float* q_norm, int kv_heads,
                const float* k_norm, int dim, float eps);

// out = activation(gate) * up. both [tokens]{gate [ffn] | up [ffn]}, out [tokens][ffn]
void apply_gate(cudaStream_t on, gate_activation kind, const float* both, int tokens, int ffn, float* out);

// The first of the largest of `count` numbers.
void find_largest(cudaStream_t on, const float* numbers, int count, int* out);

}  // namespace example::cuda
