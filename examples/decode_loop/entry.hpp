#pragma once

#include "../planner/layer_plan.hpp"
#include "cached_session.hpp"
#include "listing.hpp"
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
  if constexpr (kvilt::tabled_layout<Layout> || kvilt::tabled_by_head<Layout>)
    name += std::to_string(layout.page_rows({}));
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

// The shape with ranges as a policy wants them.
inline session_shape shape_with(scale_of scales, const session_shape& shape) {
  return scales == scale_of::tensor ? with_tensor_ranges(shape) : shape;
}

// A policy of the list for a model's heads. Throws std::invalid_argument where its rows are others.
template <class Policy, class Attention, bool HasKernel>
Policy policy_for(const listing<Policy, Attention, HasKernel>& from, int head_dim) {
  const Policy policy = from.make(head_dim);
  if (policy.k.dim() != head_dim || policy.v.dim() != head_dim)
    throw std::invalid_argument("policy " + from.name + " has rows of " + std::to_string(policy.k.dim()) + " and " +
                                std::to_string(policy.v.dim()) + " numbers; the model's heads have " +
                                std::to_string(head_dim));
  return policy;
}

template <class Policy, class Attention, bool HasKernel>
policy_entry entry_of(const listing<Policy, Attention, HasKernel>& from) {
  using attention_type = std::invoke_result_t<Attention, const kvilt::rope&, float>;
  return {
      .name = from.name,
      .columns = columns_of(from.make(64)),
      .plan = [make = from.make](const session_shape& s) { return plan_session(make(s.head_dim), s); },
      .open = [from](const session_shape& s) -> std::unique_ptr<session> {
        return open_session<attention_type>(policy_for(from, s.head_dim), shape_with(from.scales, s), from.attention);
      },
      .plan_layers = [make = from.make](const layer_group& layers, std::int64_t tokens,
                                        int sequences) { return plan_layers(make, layers, tokens, sequences); },
      .by_default = from.by_default,
      .calibrated = from.scales != scale_of::format,
      .no_kernel = from.no_kernel,
  };
}

template <class... Listings>
std::vector<policy_entry> entries_of(const std::tuple<Listings...>& list) {
  return std::apply([](const auto&... each) { return std::vector<policy_entry>{entry_of(each)...}; }, list);
}

}  // namespace example
