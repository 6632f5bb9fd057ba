#pragma once

#include "cached_session.hpp"
#include "policies.hpp"

#include <kvilt/kvilt.hpp>

#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

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
  return {kvilt::name_of(p.k), kvilt::name_of(p.v), layout_name(p.layout), retention_name(p.retention),
          Policy::exact_sinks, Policy::tail};
}

// An entry whose attention may depend on the model's RoPE: `attention_for(const kvilt::rope&)`.
template <class Policy, class AttentionFor>
policy_entry entry_with(std::string name, Policy (*make)(int head_dim), AttentionFor attention_for) {
  using attention_type = std::invoke_result_t<AttentionFor, const kvilt::rope&>;
  return {
      .name = name,
      .columns = columns_of(make(64)),
      .plan =
          [make](const session_shape& s) {
            const Policy policy = make(s.head_dim);
            return kvilt::plan_bytes(policy, cache_shape_for(policy, s));
          },
      .open = [name, make, attention_for](const session_shape& s) -> std::unique_ptr<session> {
        const Policy policy = make(s.head_dim);
        if (policy.k.dim() != s.head_dim || policy.v.dim() != s.head_dim)
          throw std::invalid_argument("policy " + name + " has rows of " + std::to_string(policy.k.dim()) + " and " +
                                      std::to_string(policy.v.dim()) + " numbers; the model's heads have " +
                                      std::to_string(s.head_dim));
        return std::make_unique<cached_session<Policy, attention_type>>(s, policy, attention_for(s.turn));
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
                    [variant](const kvilt::rope&) { return kvilt::attention<Variant>(variant); });
}

// A window whose tokens count their positions in the cache, as StreamingLLM does.
template <class Policy>
policy_entry streaming_entry(std::string name) {
  constexpr auto make = [](int head_dim) { return Policy(head_dim); };
  return entry_with<Policy>(std::move(name), make, [](const kvilt::rope& turn) {
    return kvilt::attention<kvilt::causal, kvilt::cache_positions>(kvilt::causal{}, 0, {turn});
  });
}

// Listed, and run where it is asked for by name.
inline policy_entry on_request(policy_entry entry) {
  entry.by_default = false;
  return entry;
}

}  // namespace example
