#include "plan.hpp"

#include "../decode_loop/policies.hpp"

#include <algorithm>

namespace example {
namespace {

// bytes * tokens / per_sequence without the overflow of that product: whole sequences first, then what the rest holds.
std::int64_t tokens_that_fit(std::int64_t bytes, std::int64_t tokens, std::int64_t per_sequence) {
  const double per_token = double(per_sequence) / double(tokens);
  return bytes / per_sequence * tokens + static_cast<std::int64_t>(double(bytes % per_sequence) / per_token);
}

}  // namespace

model_plan plan_model(const model_shape& model, const plan_request& request) {
  const policy_entry policy = choose_policies({request.policy}).front();
  model_plan plan;
  std::int64_t cache_bytes = 0;
  for (const layer_group& layers : model.groups) {
    const layer_plan& group =
        plan.groups.emplace_back(policy.plan_layers(layers, request.tokens, request.sequences.value_or(1)));
    plan.bytes_per_token += group.bytes_per_token;
    plan.bytes_per_sequence += group.bytes_per_sequence;
    cache_bytes += group.cache_bytes;
  }
  if (request.sequences) plan.cache_bytes = cache_bytes;
  if (request.memory) {
    const std::int64_t left = std::max<std::int64_t>(*request.memory - request.weights, 0);
    plan.sequences = left / plan.bytes_per_sequence;
    plan.tokens = tokens_that_fit(left, request.tokens, plan.bytes_per_sequence);
  }
  return plan;
}

}  // namespace example
