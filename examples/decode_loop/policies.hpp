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
  std::string no_kernel;    // why a GPU cannot run it; empty where it can
  // The same where so many percent of the tokens stay; empty where it evicts none.
  std::function<policy_entry(double percent)> at_share = {};
};

// Each family in files of its own, one line of composition a policy in the header of its name.
std::vector<policy_entry> contiguous_policies();
std::vector<policy_entry> paged_policies();
std::vector<policy_entry> narrow_policies();
std::vector<policy_entry> ring_policies();
std::vector<policy_entry> scale_policies();
std::vector<policy_entry> evict_policies();
std::vector<policy_entry> user_policies();

// All of them. The first, fp32 in contiguous memory, is what the others are measured against.
std::vector<policy_entry> all_policies();

// The policies of these names, or those that run by default where there is none. Throws std::invalid_argument with the
// nearest name for one that is not known.
std::vector<policy_entry> choose_policies(const std::vector<std::string>& names);

// Takes those away that a GPU cannot run, and says which and why in one line; empty where there are none. Throws
// std::invalid_argument for the first that is named in `names`.
std::string leave_out_without_kernels(std::vector<policy_entry>& chosen, const std::vector<std::string>& names);

}  // namespace example
