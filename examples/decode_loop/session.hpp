#pragma once

#include "transformer.hpp"

#include <kvilt/core/executor.hpp>
#include <kvilt/core/types.hpp>
#include <kvilt/position/rope.hpp>

#include <algorithm>
#include <vector>

namespace example {

// The largest magnitudes that a layer's K, turned by RoPE, and V had over a text: of each KV head, or one of all heads.
// Empty where no text was read.
struct layer_ranges {
  std::vector<float> k, v;
};

// What attention of one layer is told apart by.
struct layer_attention {
  int window = 0;    // tokens that a query sees, its own included; 0: all
  kvilt::rope turn;  // of Q and K; its table outlives the session
  layer_ranges ranges = {};
};

// What a cache is made for: one sequence of a model, or of some of its layers.
struct session_shape {
  std::vector<layer_attention> layers;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  float scale = 0;        // of Q K^T
  kvilt::idx tokens = 0;  // room for this many; a window keeps what its rule says
  int max_step = 1;       // most tokens of one step
  kvilt::host exec;       // the host with the most workers that the session will run on
};

// RoPE of each layer of a model.
inline std::vector<kvilt::rope_table> ropes_of(const model_config& model) {
  std::vector<kvilt::rope_table> ropes;
  for (const layer_config& layer : model.layers)
    ropes.emplace_back(model.rope_dims, layer.rope_base, model.rope_pairs, layer.rope_factors);
  return ropes;
}

inline session_shape shape_for(const model_config& model, const std::vector<kvilt::rope_table>& ropes,
                               const kvilt::host& exec, kvilt::idx tokens, int max_step) {
  session_shape shape{{}, model.q_heads, model.kv_heads, model.head_dim, model.attention_scale, tokens, max_step, exec};
  for (std::size_t i = 0; i < ropes.size(); ++i) shape.layers.push_back({model.layers[i].window, ropes[i], {}});
  return shape;
}

// The same, every head of a layer given the range of the widest.
inline session_shape with_tensor_ranges(session_shape shape) {
  for (layer_attention& layer : shape.layers)
    for (std::vector<float>* heads : {&layer.ranges.k, &layer.ranges.v})
      if (!heads->empty()) *heads = {std::ranges::max(*heads)};
  return shape;
}

// One sequence in a cache of some policy, with the policy's type erased: what decoding and evaluation are written for.
//
// `begin` plans steps, `attend` runs them on one layer after the other, `commit` or `cancel` ends them.
class session {
 public:
  virtual ~session() = default;

  // Plans `tokens` more as steps of `step_tokens` each, the last one perhaps shorter.
  virtual void begin(int tokens, int step_tokens) = 0;

  // Runs the planned steps on one layer, in order, as if every other layer had done the same: append, then attention.
  //   q, out [tokens][q_heads][head_dim], k and v [tokens][kv_heads][head_dim]; RoPE is applied to q in place
  virtual void attend(const kvilt::host& exec, int layer, float* q, const float* k, const float* v, float* out) = 0;

  virtual void commit() = 0;

  // Ends a single planned step as if it had not been.
  virtual void cancel() = 0;

  virtual kvilt::idx length() const = 0;
  virtual int max_step() const = 0;

  // Forgets everything.
  virtual void restart() = 0;

  // Bytes of K and V that the heap was asked for.
  virtual kvilt::idx cache_bytes() const = 0;
};

}  // namespace example
