#pragma once

#include "../planner/layer_plan.hpp"
#include "cached_session.hpp"
#include "policies.hpp"

#include <kvilt/kvilt.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace example {

template <class Layout>
std::string layout_name(const Layout& layout) {
  std::string name = "user";
  if constexpr (requires { Layout::name(); }) name = Layout::name();
  if constexpr (kvilt::tabled_layout<Layout>) name += std::to_string(layout.page_rows({}));
  return name;
}

template <class Retention>
std::string retention_name(const Retention& retention) {
  if constexpr (!Retention::slides) return Retention::name();
  const std::string width = "window" + std::to_string(retention.width());
  return Retention::sinks() > 0 ? width + "+" + std::to_string(Retention::sinks()) : width;
}

template <class Policy>
policy_columns columns_of(const Policy& p) {
  return {kvilt::name_of(p.k),         kvilt::name_of(p.v), layout_name(p.layout),
          retention_name(p.retention), Policy::exact_sinks, Policy::tail};
}

// The layers of a session's model that see all of a text, and those that see its last tokens.
struct layers_by_reach {
  std::vector<int> global, local;
  int window = 0;  // of the local ones
};

inline layers_by_reach split_by_reach(const session_shape& shape) {
  layers_by_reach split;
  for (int i = 0; i < static_cast<int>(shape.layers.size()); ++i) {
    const int window = shape.layers[std::size_t(i)].window;
    if (window > 0 && split.window > 0 && window != split.window)
      throw std::invalid_argument("layers see the last " + std::to_string(split.window) + " and the last " +
                                  std::to_string(window) + " tokens; one window for all local layers is supported");
    split.window = std::max(split.window, window);
    (window > 0 ? split.local : split.global).push_back(i);
  }
  return split;
}

// Calls use(group) or use(global, local): layers of a kind with the policy that they keep their tokens by.
template <class Policy, class Use>
auto with_groups(const Policy& policy, const session_shape& shape, Use&& use) {
  const layers_by_reach split = split_by_reach(shape);
  if (split.global.empty())
    return with_layers_policy(policy, {split.window}, shape.tokens,
                              [&](const auto& kept, std::int64_t) { return use(group_for(kept, split.local, shape)); });
  const auto global = group_for(policy, split.global, shape);
  if (split.local.empty()) return use(global);
  return use(global, group_for(sliding_policy(policy, split.window, shape.tokens), split.local, shape));
}

template <class Policy>
session_plan plan_session(const Policy& policy, const session_shape& shape) {
  return with_groups(policy, shape, [&](const auto&... groups) {
    const auto bytes = kvilt::plan_bytes(set_shape_for(shape), groups...);
    return session_plan{bytes.bytes_per_token(), bytes.kv_bytes()};
  });
}

template <class Attention, class Policy, class AttentionFor>
std::unique_ptr<session> open_session(const Policy& policy, const session_shape& shape, AttentionFor attention_for) {
  std::vector<Attention> attention;
  for (const layer_attention& layer : shape.layers) attention.push_back(attention_for(layer.turn, shape.scale));
  return with_groups(policy, shape, [&]<class... Kept>(const kvilt::layer_group<Kept>&... groups) {
    return std::unique_ptr<session>(std::make_unique<cached_session<Attention, Kept...>>(shape, attention, groups...));
  });
}

// An entry whose attention may depend on the layer's RoPE: `attention_for(const kvilt::rope&, float scale)`.
template <class Policy, class AttentionFor>
policy_entry entry_with(std::string name, Policy (*make)(int head_dim), AttentionFor attention_for) {
  using attention_type = std::invoke_result_t<AttentionFor, const kvilt::rope&, float>;
  return {
      .name = name,
      .columns = columns_of(make(64)),
      .plan = [make](const session_shape& s) { return plan_session(make(s.head_dim), s); },
      .open = [name, make, attention_for](const session_shape& s) -> std::unique_ptr<session> {
        const Policy policy = make(s.head_dim);
        if (policy.k.dim() != s.head_dim || policy.v.dim() != s.head_dim)
          throw std::invalid_argument("policy " + name + " has rows of " + std::to_string(policy.k.dim()) + " and " +
                                      std::to_string(policy.v.dim()) + " numbers; the model's heads have " +
                                      std::to_string(s.head_dim));
        return open_session<attention_type>(policy, s, attention_for);
      },
      .plan_layers = [make](const layer_group& layers, std::int64_t tokens,
                            int sequences) { return plan_layers(make, layers, tokens, sequences); },
  };
}

// A policy whose parts take the model's head dim at run time, or, with `make`, any policy at all.
template <class Policy, kvilt::attention_variant Variant = kvilt::causal>
policy_entry entry(
    std::string name, Variant variant = {},
    Policy (*make)(int head_dim) = [](int head_dim) { return Policy(head_dim); }) {
  return entry_with(std::move(name), make,
                    [variant](const kvilt::rope&, float scale) { return kvilt::attention<Variant>(variant, scale); });
}

// A window whose tokens count their positions in the cache, as StreamingLLM does.
template <class Policy>
policy_entry streaming_entry(std::string name) {
  constexpr auto make = [](int head_dim) { return Policy(head_dim); };
  return entry_with<Policy>(std::move(name), make, [](const kvilt::rope& turn, float scale) {
    return kvilt::attention<kvilt::causal, kvilt::cache_positions>(kvilt::causal{}, scale, {turn});
  });
}

enum class scale_of { head, tensor };

// Formats whose scales are known before the first token: of each KV head of a layer, or one for all of them.
template <class Policy>
policy_entry calibrated_entry(std::string name, scale_of which) {
  policy_entry e = entry<Policy>(std::move(name));
  e.calibrated = true;
  if (which == scale_of::tensor)
    e.open = [open = e.open](const session_shape& s) { return open(with_tensor_ranges(s)); };
  return e;
}

// Listed, and run where it is asked for by name.
inline policy_entry on_request(policy_entry entry) {
  entry.by_default = false;
  return entry;
}

}  // namespace example
