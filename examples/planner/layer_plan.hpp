#pragma once

#include <kvilt/cache/budget.hpp>
#include <kvilt/cache/policy.hpp>
#include <kvilt/cache/retention.hpp>

#include <algorithm>
#include <cstdint>
#include <string>

namespace example {

// Layers whose K and V have one shape and one reach: what one cache would own.
struct layer_group {
  std::string name;  // "global" or "local"
  int layers;
  int kv_heads;
  int k_dim;
  int v_dim;
  int window;  // tokens that a query of these layers sees; 0: all
};

// What such layers take under a policy.
struct layer_plan {
  std::int64_t window = 0;              // tokens that stay, sinks aside; 0: all
  double bytes_per_token = 0;           // while it is kept
  std::int64_t bytes_per_sequence = 0;  // grown to its length
  std::int64_t cache_bytes = 0;         // of all sequences, page tables included
};

// The policy that keeps only the last tokens, in the formats, layout and tail of another: for layers that see no more.
// 16-bit sinks go, since such layers do not see them; those of a policy that itself slides stay.
template <class Policy>
using sliding = kvilt::policy<typename Policy::layout_type, typename Policy::k_format, typename Policy::v_format,
                              kvilt::window<kvilt::dynamic, Policy::retention_type::sinks()>, 0, Policy::tail>;

template <class Policy>
layer_plan plan_cache(const Policy& policy, kvilt::cache_shape shape, int sequences) {
  const kvilt::budget one = kvilt::plan_bytes(policy, shape);
  shape.sequences = sequences;
  if constexpr (kvilt::fixed_layout<typename Policy::layout_type>) {
    shape.tokens *= sequences;
  } else {
    // NOTE: a pool is told how many tokens it is to hold in all, and of a window fewer than the sequence has.
    const kvilt::idx pages = (one.bytes_per_sequence - one.exact_sequence_bytes) / shape.layers / one.body_page_bytes;
    shape.tokens = sequences * pages * policy.layout.page_rows({});
  }
  return {0, one.bytes_per_token, one.bytes_per_sequence, kvilt::plan_bytes(policy, shape).bytes()};
}

// Layers under the policy that `make` gives for a head dim, in `sequences` sequences of `tokens` tokens each that grow
// by one token a step.
template <class Policy>
layer_plan plan_layers(Policy (*make)(int head_dim), const layer_group& layers, std::int64_t tokens, int sequences) {
  Policy policy = make(layers.k_dim);
  policy.v = make(layers.v_dim).v;
  const kvilt::cache_shape shape{
      .layers = layers.layers, .kv_heads = layers.kv_heads, .tokens = tokens, .max_length = tokens};
  std::int64_t window = layers.window;
  if constexpr (Policy::retention_type::slides) {
    const std::int64_t width = policy.retention.width();
    window = window == 0 ? width : std::min(window, width);
  }
  if (window == 0) return plan_cache(policy, shape, sequences);
  // A window wider than the sequences are long is given no more room than they fill.
  const decltype(sliding<Policy>::retention) kept(static_cast<int>(std::min(window, tokens)));
  layer_plan plan = plan_cache(sliding<Policy>(policy.k, policy.v, kept, policy.layout), shape, sequences);
  plan.window = window;
  return plan;
}

}  // namespace example
