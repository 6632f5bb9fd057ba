#pragma once

#include "../engine_wrap/cuda.hpp"
#include "cuda_array.cuh"
#include "cuda_kernels.cuh"
#include "transformer.hpp"

#include <kvilt/core/types.hpp>

#include <cublas_v2.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace example {

// cuBLAS on one stream.
class cuda_blas {
 public:
  explicit cuda_blas(const stream& on);
  cuda_blas(const cuda_blas&) = delete;
  cuda_blas& operator=(const cuda_blas&) = delete;
  ~cuda_blas() { cublasDestroy(handle_); }

  // out = in x transposed weights: weights [outputs][inputs], in [tokens][inputs], out [tokens][outputs]
  void multiply(const float* weights, int outputs, int inputs, const float* in, int tokens, float* out) const;

 private:
  cublasHandle_t handle_ = nullptr;
  cuda_array<unsigned char> workspace_{std::size_t(32) << 20};
};

// One layer's attention over the tokens of a pass, launched in the model's stream. The callee applies RoPE, owns the
// cache, and may overwrite q: rows of [q_heads][head_dim], k and v of [kv_heads][head_dim].
using cuda_attention_fn = std::function<void(int layer, const kvilt::rows<float>& q, const kvilt::rows<const float>& k,
                                             const kvilt::rows<const float>& v, const kvilt::rows<float>& out)>;

// The transformer on the current GPU. Weights, activations and sums are fp32 as on the host, no TF32 among them, so that
// the caches are all that tells the two apart.
//
// A pass runs over the first tokens of buffers that stay where they are, so that it can be captured: `embed` before it
// says which tokens these are.
class cuda_transformer {
 public:
  // A copy; `most_tokens`: of a pass.
  cuda_transformer(const transformer& from, int most_tokens);
  cuda_transformer(const cuda_transformer&) = delete;
  cuda_transformer& operator=(const cuda_transformer&) = delete;

  const model_config& config() const { return config_; }
  const stream& on() const { return stream_; }

  // Brings tokens that passes are to read, instead of those before.
  void send(std::span<const int> tokens);
  // The next pass reads `count` of them.
  void embed(int first, int count);
  // A pass over `tokens` tokens as a graph.
  std::unique_ptr<const graph> record(int tokens, const cuda_attention_fn& attention);

  // What a pass has left of a token for `logits`: [hidden].
  const float* hidden(int token) const { return hidden_.data() + std::size_t(token) * std::size_t(config_.hidden); }
  // hidden [rows][hidden] and out [rows][vocab], both on the device.
  void logits(const float* hidden, int rows, float* out) const;
  // The likeliest token by logits [vocab] on the device. Waits for it.
  int likeliest(const float* logits) const;

 private:
  using numbers = cuda_array<float>;

  struct layer {
    numbers attention_norm;       // [hidden]
    numbers qkv;                  // [q_heads + 2 kv_heads][head_dim][hidden]
    numbers attention_out;        // [hidden][q_heads][head_dim]
    numbers q_norm, k_norm;       // [head_dim], empty where there is none
    numbers post_attention_norm;  // [hidden], likewise
    numbers ffn_norm;             // [hidden]
    numbers gate_up;              // [2][ffn][hidden]
    numbers down;                 // [hidden][ffn]
    numbers post_ffn_norm;        // [hidden], likewise
  };

  static layer copy_of(const layer_weights& from);
  int qkv_size() const { return (config_.q_heads + 2 * config_.kv_heads) * config_.head_dim; }
  numbers rows_of(int size) const { return numbers(std::size_t(most_tokens_) * std::size_t(size)); }
  void forward(int tokens, const cuda_attention_fn& attention);
  void run_attention(int index, int tokens, const cuda_attention_fn& attention);
  void run_ffn(const layer& weights, gate_activation gate, int tokens);
  void add_and_norm(const cuda::addition& added, const numbers& norm, int tokens, const numbers& out) const;

  model_config config_;
  int most_tokens_;
  stream stream_;
  cuda_blas blas_;
  numbers embedding_, output_, output_norm_;  // output_ empty where the embedding serves
  std::vector<layer> layers_;
  cuda_array<int> tokens_, likeliest_;
  numbers residual_, normed_, delta_, hidden_;  // [tokens][hidden]
  numbers qkv_, attended_;                      // [tokens][q_heads + 2 kv_heads][head_dim], [tokens][q_heads][head_dim]
  numbers gate_up_, gated_;                     // [tokens][2][ffn], [tokens][ffn]
};

}  // namespace example
