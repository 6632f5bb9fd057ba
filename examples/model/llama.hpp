#pragma once

#include "gguf.hpp"
#include "linear.hpp"
#include "worker_pool.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace example {

struct llama_config {
  int layers;
  int hidden;
  int ffn;
  int q_heads;
  int kv_heads;
  int head_dim;
  int rope_dims;  // of each head's first elements; pairs are interleaved, (2i, 2i + 1)
  float rope_base;
  int context;  // the longest sequence the model was trained for
  int vocab;
  float norm_eps;
};

// Reads the shape of a llama-architecture file and checks it; needs no tensor but the embedding.
llama_config read_llama_config(const gguf_file& file);

// One layer's attention over `tokens` new tokens. The callee applies RoPE, owns the cache, and may overwrite q and k.
//   q [tokens][q_heads][head_dim], k and v [tokens][kv_heads][head_dim], out [tokens][q_heads][head_dim]
using attention_fn = std::function<void(int layer, int tokens, float* q, float* k, const float* v, float* out)>;

enum class weight_storage {
  automatic,  // fp32 where that takes at most half of the machine's memory
  fp32,
  encoded,  // as in the file, decoded a block at a time on use
};

// A model of architecture llama. It holds no state of a sequence: that is the caller's, in the attention callback.
class llama_model {
 public:
  explicit llama_model(std::shared_ptr<const gguf_file> file, int threads = 1,
                       weight_storage storage = weight_storage::automatic);

  const llama_config& config() const { return config_; }

  // Divisors of RoPE's frequencies, one for each pair: angle = position * base^(-2i / rope_dims) / factor[i]. Empty
  // where all are one. They carry Llama 3's long-context factors and linear scaling.
  const std::vector<float>& rope_factors() const { return rope_factors_; }

  bool weights_are_fp32() const { return fp32_; }

  // Runs the layers over the tokens, one layer after the other for all of them, and leaves in hidden_out
  // [tokens][hidden] what `logits` wants. One caller at a time.
  void forward(std::span<const int> tokens, const attention_fn& attention, std::vector<float>& hidden_out);

  // hidden [rows][hidden] as forward left it, out [rows][vocab]
  void logits(const float* hidden, int rows, float* out);

  // The threads that forward and logits use; idle while the attention callback runs, which may use them.
  worker_pool& workers() { return *workers_; }

 private:
  struct layer {
    std::vector<float> attention_norm;  // [hidden]
    weight_matrix q, k, v, attention_out;
    std::vector<float> ffn_norm;  // [hidden]
    weight_matrix gate, up, down;
  };

  // Activations of one pass, kept so that decoding allocates nothing.
  struct workspace {
    std::vector<float> normed;       // [tokens][hidden]
    std::vector<float> q, attended;  // [tokens][q_heads][head_dim]
    std::vector<float> k, v;         // [tokens][kv_heads][head_dim]
    std::vector<float> gate, up;     // [tokens][ffn]
    std::vector<float> delta;        // [tokens][hidden], what a block adds to the residual stream
  };

  weight_matrix load_matrix(const std::string& name, int rows, int columns) const;
  layer load_layer(int index) const;
  void load_rope_factors();
  void check_tensor_names() const;
  void resize_workspace(int tokens);
  void embed(std::span<const int> tokens, std::vector<float>& out);
  void normalise(const float* in, const std::vector<float>& weight, int tokens, float* out);
  void add_delta(int tokens, float* residual);
  void run_ffn(const layer& weights, int tokens, float* residual);

  std::shared_ptr<const gguf_file> file_;
  llama_config config_;
  std::unique_ptr<worker_pool> workers_;
  bool fp32_;
  std::vector<float> rope_factors_;
  weight_matrix embedding_;
  weight_matrix output_;  // empty where the embedding serves
  std::vector<float> output_norm_;
  std::vector<layer> layers_;
  workspace work_;
};

}  // namespace example
