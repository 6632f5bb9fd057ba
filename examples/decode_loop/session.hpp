#pragma once

#include "llama.hpp"

#include <kvilt/core/executor.hpp>
#include <kvilt/core/types.hpp>
#include <kvilt/position/rope.hpp>

namespace example {

// What a cache is made for: one sequence of a model.
struct session_shape {
  int layers = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  kvilt::idx tokens = 0;  // room for this many; a window keeps what its rule says
  int max_step = 1;       // most tokens of one step
  kvilt::rope turn;       // of Q and K; its table outlives the session
  kvilt::host exec;       // the host with the most workers that the session will run on
};

inline session_shape shape_for(const llama_config& model, const kvilt::rope& turn, const kvilt::host& exec,
                               kvilt::idx tokens, int max_step) {
  return {model.layers, model.q_heads, model.kv_heads, model.head_dim, tokens, max_step, turn, exec};
}

// RoPE as GGUF files of architecture llama want it.
inline kvilt::rope_table rope_of(const llama_model& model) {
  const llama_config& c = model.config();
  return kvilt::rope_table(c.rope_dims, c.rope_base, kvilt::rope_pairs::interleaved, model.rope_factors());
}

// One sequence in a cache of some policy, with the policy's type erased: what decoding and evaluation are written for.
//
// `begin` plans steps, `attend` runs them on one layer after the other, `commit` ends them.
class session {
 public:
  virtual ~session() = default;

  // Plans `tokens` more as steps of `step_tokens` each, the last one perhaps shorter. More than one step needs
  // `replays()`.
  virtual void begin(int tokens, int step_tokens) = 0;

  // Runs the planned steps on one layer, in order, as if every other layer had done the same: append, then attention.
  //   q, out [tokens][q_heads][head_dim], k and v [tokens][kv_heads][head_dim]; RoPE is applied to q in place
  virtual void attend(const kvilt::host& exec, int layer, float* q, const float* k, const float* v, float* out) = 0;

  virtual void commit() = 0;

  virtual kvilt::idx length() const = 0;
  virtual int max_step() const = 0;

  // Whether layers may run several steps each, one layer after the other. Not where a window gives pages back: they
  // serve later tokens while other layers still need the earlier ones.
  virtual bool replays() const = 0;

  // Takes the newest tokens back where the cache has no room for `tokens` more.
  virtual void make_room(int tokens) = 0;

  // Forgets everything.
  virtual void restart() = 0;

  // Bytes of K and V that the heap was asked for.
  virtual kvilt::idx cache_bytes() const = 0;
};

}  // namespace example
