#pragma once

#include "eviction.hpp"
#include "kept_text.hpp"
#include "transformer.hpp"

#include <kvilt/core/executor.hpp>
#include <kvilt/core/types.hpp>
#include <kvilt/position/rope.hpp>
#include <kvilt/tiers/sequence_file.hpp>

#include <algorithm>
#include <span>
#include <string>
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

// What a cache is made for: sequences of a model, or of some of its layers.
struct session_shape {
  std::vector<layer_attention> layers;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  float scale = 0;        // of Q K^T
  kvilt::idx tokens = 0;  // room for this many in a sequence; a window keeps what its rule says
  int max_step = 1;       // most tokens of one step
  kvilt::host exec;       // the host with the most workers that the session will run on
  int sequences = 1;
  bool prefixes = false;  // prompts find what others have begun with
  eviction evict = {};    // for policies from whose sequences tokens are evicted
};

// Pages of a session's sequences, and bytes: how many there are, and how many there would be if each had its own.
struct shared_pages {
  kvilt::idx pages = 0, bytes = 0;
  kvilt::idx alone_pages = 0, alone_bytes = 0;
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

// Sequences in a cache of some policy, with the policy's type erased: what decoding and evaluation are written for.
//
// Verbs are about the sequence that is selected, number 0 at first. `begin` plans steps, `attend` runs them on one layer
// after the other, `commit` or `cancel` ends them.
class session : public kept_text {
 public:
  // From now on verbs are about this one, of `session_shape::sequences`.
  virtual void select(int sequence) = 0;

  // Another sequence becomes as the selected one is.
  virtual void fork(int to) = 0;

  // The selected sequence begins anew with what others have of the prompt; returns how many tokens that are. For a shape
  // that says `prefixes`.
  virtual kvilt::idx restart_with(std::span<const int> prompt) = 0;

  // The tokens that were appended since are these, for others to find.
  virtual void name(std::span<const int> tokens) = 0;

  virtual shared_pages pages() const = 0;

  // Plans `tokens` more as steps of `step_tokens` each, the last one perhaps shorter.
  virtual void begin(int tokens, int step_tokens) = 0;

  // Runs the planned steps on one layer, in order, as if every other layer had done the same: append, then attention.
  //   q, out [tokens][q_heads][head_dim], k and v [tokens][kv_heads][head_dim]; RoPE is applied to q in place
  virtual void attend(const kvilt::host& exec, int layer, float* q, const float* k, const float* v, float* out) = 0;

  // Writes what it holds to a file, and has what a file holds in place of that.
  virtual void save(const kvilt::host& exec, const std::string& path, const kvilt::text_labels& labels) const = 0;
  virtual void load(const kvilt::host& exec, const kvilt::sequence_file<>& file, const kvilt::text_labels& wanted) = 0;
  virtual void truncate(kvilt::idx length) = 0;
};

}  // namespace example
