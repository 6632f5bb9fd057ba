#pragma once

#include <kvilt/cache/budget.hpp>
#include <kvilt/cache/layer_map.hpp>

#include <array>
#include <string>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// How large a set of caches is to be, in what all its groups share.
struct set_shape {
  int sequences = 1;   // open at one time
  idx tokens = 0;      // in all sequences together, unless a group says otherwise
  idx max_length = 0;  // longest sequence, as `cache_shape` has it
  int max_step = 1;    // most tokens that one step appends to one sequence where a window or a tail keeps room for them
  bool prefixes = false;  // full pages stay for prompts that begin alike, in every group
};

/// Layers of a model that are kept alike.
template <class Policy>
struct layer_group {
  std::vector<layer_part> layers;  // what each layer of the group keeps, in any order
  int kv_heads = 0;                // of each
  Policy policy = {};
  idx tokens = 0;  // in all sequences together; 0: the set's. A window over pages is well served by fewer
};

/// Bytes of a set, exact: the sums over its groups.
template <int Groups>
struct set_budget {
  std::array<budget, std::size_t(Groups)> groups;

  idx bytes() const { return kv_bytes() + table_bytes() + list_bytes(); }
  idx kv_bytes() const { return sum(&budget::kv_bytes); }
  idx table_bytes() const { return sum(&budget::table_bytes); }
  idx list_bytes() const { return sum(&budget::list_bytes); }
  double bytes_per_token() const { return sum(&budget::bytes_per_token); }
  idx bytes_per_sequence() const { return sum(&budget::bytes_per_sequence); }

 private:
  template <class Number>
  Number sum(Number budget::*member) const {
    Number all = 0;
    for (const budget& b : groups) all += b.*member;
    return all;
  }
};

namespace detail {

/// Where in a set something went wrong, for errors to name.
struct set_place {
  int group;
  int layer = -1;  // of the model; -1: any

  std::string operator()() const {
    const std::string of_group = "group " + std::to_string(group);
    return layer < 0 ? of_group : "layer " + std::to_string(layer) + ", " + of_group;
  }
};

/// Runs `body`; what it throws names the group.
template <class Body>
KVILT_ALWAYS_INLINE decltype(auto) in_group(int group, Body&& body) {
  return named(set_place{group}, body);
}

template <class Policy>
cache_shape shape_of(const set_shape& s, const layer_group<Policy>& g) {
  return {.layers = int(g.layers.size()),
          .kv_heads = g.kv_heads,
          .sequences = s.sequences,
          .tokens = g.tokens ? g.tokens : s.tokens,
          .max_length = s.max_length,
          .max_step = s.max_step,
          .prefixes = s.prefixes};
}

template <class... Policies>
layer_map map_layers(const layer_group<Policies>&... groups) {
  layer_map map;
  int g = 0;
  (map.add(g++, groups.layers, groups.kv_heads, groups.policy.k.dim(), groups.policy.v.dim()), ...);
  map.close();
  return map;
}

}  // namespace detail

/// What a set of these groups takes, without allocating it. Throws `invalid_argument` as the set would.
template <class... Policies>
set_budget<int(sizeof...(Policies))> plan_bytes(const set_shape& s, const layer_group<Policies>&... groups) {
  detail::map_layers(groups...);
  int g = 0;
  return {{detail::in_group(g++, [&] { return plan_bytes(groups.policy, detail::shape_of(s, groups)); })...}};
}

}  // namespace kvilt::inline KVILT_ABI
