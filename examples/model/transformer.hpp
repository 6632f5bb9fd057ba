#pragma once

#include "gguf.hpp"
#include "linear.hpp"
#include "model_config.hpp"

#include <kvilt/core/executor.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace example {

// One layer's attention over `tokens` new tokens. The callee applies RoPE, owns the cache, and may overwrite q and k.
//   q [tokens][q_heads][head_dim], k and v [tokens][kv_heads][head_dim], out [tokens][q_heads][head_dim]
using attention_fn = std::function<void(int layer, int tokens, float* q, float* k, const float* v, float* out)>;

enum class weight_storage {
  automatic,  // fp32 where that takes at most half of the machine's memory
  fp32,
  encoded,  // as in the file, decoded a block at a time on use
};

struct weight_options {
  weight_storage storage = weight_storage::automatic;
  bool codes = false;  // beside them, in 8 bit or less, for arithmetic::integer
};

using norm_weights = std::vector<float>;  // of an RMSNorm, empty where there is none

struct layer_weights {
  norm_weights attention_norm;  // [hidden]
  weight_matrix q, k, v, attention_out;
  norm_weights q_norm, k_norm;       // [head_dim]
  norm_weights post_attention_norm;  // [hidden]
  norm_weights ffn_norm;             // [hidden]
  weight_matrix gate, up, down;
  norm_weights post_ffn_norm;  // [hidden]
};

struct model_weights {
  weight_matrix embedding;
  weight_matrix output;  // empty where the embedding serves
  norm_weights output_norm;
  std::vector<layer_weights> layers;

  const weight_matrix& head() const { return output.rows() > 0 ? output : embedding; }
};

// Throws model_error for a token that is not of the vocabulary.
void check_tokens(std::span<const int> tokens, int vocab);

// A decoder-only transformer. It holds no state of a sequence: that is the caller's, in the attention callback.
class transformer {
 public:
  // Runs on `exec`, which is idle while the attention callback runs and may serve there.
  explicit transformer(std::shared_ptr<const gguf_file> file, const kvilt::host& exec = {},
                       const weight_options& weights = {});

  const model_config& config() const { return config_; }
  const model_weights& weights() const { return weights_; }

  bool weights_are_fp32() const { return fp32_; }

  // Runs the layers over the tokens, one layer after the other for all of them, and leaves in hidden_out
  // [tokens][hidden] what `logits` wants. One caller at a time.
  void forward(std::span<const int> tokens, const attention_fn& attention, std::vector<float>& hidden_out,
               arithmetic how = arithmetic::fp32);

  // hidden [rows][hidden] as forward left it, out [rows][vocab]
  void logits(const float* hidden, int rows, float* out, arithmetic how = arithmetic::fp32);

 private:
  // Activations of one pass, kept so that decoding allocates nothing.
  struct workspace {
    std::vector<float> normed;       // [tokens][hidden]
    std::vector<float> q, attended;  // [tokens][q_heads][head_dim]
    std::vector<float> k, v;         // [tokens][kv_heads][head_dim]
    std::vector<float> gate, up;     // [tokens][ffn]
    std::vector<float> delta;        // [tokens][hidden], what a block adds to the residual stream
  };

  weight_matrix load_matrix(const std::string& name, int rows, int columns) const;
  layer_weights load_layer(int index) const;
  void check_tensor_names() const;
  void resize_workspace(int tokens);
  void embed(std::span<const int> tokens, std::vector<float>& out) const;
  void run_attention(int index, int tokens, const attention_fn& attention, arithmetic how, float* residual);
  void run_ffn(int index, int tokens, arithmetic how, float* residual);
  void normalise(const float* in, const norm_weights& weight, int rows, float* out) const;
  void add_delta(const norm_weights& post_norm, int tokens, float* residual);

  std::shared_ptr<const gguf_file> file_;
  model_config config_;
  kvilt::host exec_;
  bool fp32_;
  bool codes_;
  model_weights weights_;
  workspace work_;
};

}  // namespace example
