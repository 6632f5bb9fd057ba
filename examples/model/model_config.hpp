#pragma once

#include "gguf.hpp"

#include <kvilt/position/rope.hpp>

#include <string>
#include <vector>

namespace example {

enum class gate_activation { silu, gelu_tanh };

// What one layer computes, beside the numbers of its weights.
struct layer_config {
  bool qk_norms = false;    // each head of Q and K is normalised before RoPE
  bool post_norms = false;  // what attention and the FFN give is normalised before it is added
  gate_activation gate = gate_activation::silu;
  int window = 0;  // tokens that a query sees, its own included; 0: all before it

  // RoPE's angle = position * rope_base^(-2i / rope_dims) / rope_factors[i], one factor for each pair or none where all
  // are one. They carry Llama 3's long-context factors and linear scaling.
  float rope_base = 10000.0f;
  std::vector<float> rope_factors = {};
};

struct model_config {
  std::string architecture;
  int hidden = 0;
  int ffn = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int rope_dims = 0;  // of each head's first elements
  kvilt::rope_pairs rope_pairs = kvilt::rope_pairs::interleaved;
  float attention_scale = 0;  // of Q K^T
  float embedding_scale = 1;
  int context = 0;  // the longest sequence the model was trained for
  int vocab = 0;
  float norm_eps = 0;
  std::vector<layer_config> layers;
};

// Reads what a file says of a model of architecture llama or gemma3, and checks it.
model_config read_model_config(const gguf_file& file);

}  // namespace example
