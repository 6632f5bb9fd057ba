#pragma once

#include <kvilt/cache/budget.hpp>
#include <kvilt/cache/policy.hpp>
#include <kvilt/cache/retention.hpp>
#include <kvilt/layout/paged.hpp>
#include <kvilt/layout/paged_by_head.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace example {

// Layers whose K and V have one shape and one reach: what one cache would own.
struct layer_group {
  std::string name;  // "global" or "local"
  int layers;
  int kv_heads;
  int k_dim;
  int v_dim;
  int window;                  // tokens that a query of these layers sees; 0: all
  bool beside_global = false;  // other layers of the model see all
};

// What such layers take under a policy.
struct layer_plan {
  std::int64_t window = 0;              // tokens that stay, sinks aside; 0: all
  double bytes_per_token = 0;           // while it is kept
  std::int64_t bytes_per_sequence = 0;  // grown to its length
  std::int64_t cache_bytes = 0;         // of all sequences, page tables included
};

// The layout for layers all of whose heads keep the same tokens.
template <class Layout>
Layout layout_of_all_heads(const Layout& layout) {
  return layout;
}
template <int P>
kvilt::paged<P> layout_of_all_heads(const kvilt::paged_by_head<P>& layout) {
  if constexpr (P == kvilt::dynamic)
    return kvilt::paged<P>(layout.page_size());
  else
    return {};
}

// The policy that keeps only the last tokens, in the formats, layout and tail of another: for layers that see no more.
// Sinks go, since such layers do not see them. Formats of whole tiles cannot slide: 16 bit stands in for them.
template <class Policy>
struct sliding {
  static constexpr bool tiles = Policy::tile > 1;
  using layout = decltype(layout_of_all_heads(std::declval<const typename Policy::layout_type&>()));
  using retention = kvilt::window<>;
  using type = std::conditional_t<
      tiles, kvilt::policy<layout, typename Policy::exact_k, typename Policy::exact_v, retention>,
      kvilt::policy<layout, typename Policy::k_format, typename Policy::v_format, retention, 0, Policy::tail>>;

  static type of(const Policy& p, int window) {
    if constexpr (tiles)
      return type(p.k_exact(), p.v_exact(), retention(window), layout_of_all_heads(p.layout));
    else
      return type(p.k, p.v, retention(window), layout_of_all_heads(p.layout));
  }
};

// The same for layers that see the last `window` tokens of a text: a window wider than the text gets no more room than
// that fills.
template <class Policy>
auto sliding_policy(const Policy& policy, int window, std::int64_t tokens) {
  return sliding<Policy>::of(policy, static_cast<int>(std::min<std::int64_t>(window, tokens)));
}

// What layers see of a text: its last `window` tokens, all where that is 0. `beside_global`: other layers of the model
// see all.
struct layer_reach {
  int window = 0;
  bool beside_global = false;
};

// Calls use(policy, window) with what layers of a reach keep: those that see all by the policy itself, others just what
// they see. A policy's own window is meant for layers that see all; where there are none, the shorter one counts.
template <class Policy, class Use>
auto with_layers_policy(const Policy& policy, layer_reach reach, std::int64_t tokens, Use&& use) {
  std::int64_t own = 0;
  if constexpr (Policy::retention_type::slides) own = policy.retention.width();
  if (reach.window == 0 || (own > 0 && own <= reach.window && !reach.beside_global)) return use(policy, own);
  return use(sliding_policy(policy, reach.window, tokens), std::int64_t{reach.window});
}

template <class Policy>
layer_plan plan_cache(const Policy& policy, kvilt::cache_shape shape, int sequences) {
  const kvilt::budget one = kvilt::plan_bytes(policy, shape);
  shape.sequences = sequences;
  if constexpr (kvilt::fixed_layout<typename Policy::layout_type>) {
    shape.tokens *= sequences;
  } else {
    // NOTE: a pool is told how many tokens it is to hold in all, and of a window fewer than the sequence has.
    shape.tokens = sequences * one.tokens_per_sequence;
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
  return with_layers_policy(policy, {layers.window, layers.beside_global}, tokens,
                            [&](const auto& kept, std::int64_t window) {
                              layer_plan plan = plan_cache(kept, shape, sequences);
                              plan.window = window;
                              return plan;
                            });
}

}  // namespace example
