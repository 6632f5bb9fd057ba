#pragma once

#include "../planner/layer_plan.hpp"
#include "session.hpp"

#include <kvilt/core/types.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace example {

// What the table says of a policy.
struct policy_columns {
  std::string k_format;
  std::string v_format;
  std::string layout;
  std::string retention;
  int sinks16 = 0;
  int tail16 = 0;
};

// What the caches of a session take.
struct session_plan {
  double bytes_per_token = 0;  // while every layer keeps it
  kvilt::idx kv_bytes = 0;     // K and V, page tables aside
};

// A policy under a name, its type erased. Layers that see only the last tokens keep no more than those.
struct policy_entry {
  std::string name;
  policy_columns columns;
  std::function<session_plan(const session_shape&)> plan;
  std::function<std::unique_ptr<session>(const session_shape&)> open;
  std::function<layer_plan(const layer_group&, std::int64_t tokens, int sequences)> plan_layers;
  bool by_default = true;
  bool calibrated = false;  // its scales come from ranges over a text: see calibrate.hpp
};

// Each family in a file of its own, one line of composition a policy.
std::vector<policy_entry> contiguous_policies();
std::vector<policy_entry> paged_policies();
std::vector<policy_entry> narrow_policies();
std::vector<policy_entry> ring_policies();
std::vector<policy_entry> scale_policies();
std::vector<policy_entry> user_policies();

// All of them. The first, fp32 in contiguous memory, is what the others are measured against.
std::vector<policy_entry> all_policies();

// The policies of these names, or those that run by default where there is none. Throws std::invalid_argument with the
// nearest name for one that is not known.
std::vector<policy_entry> choose_policies(const std::vector<std::string>& names);

}  // namespace example
