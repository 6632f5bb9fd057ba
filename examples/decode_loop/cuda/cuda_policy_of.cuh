#pragma once

#include "../entry.hpp"
#include "cached_cuda_session.cuh"
#include "cuda_policy.cuh"

#include <memory>
#include <type_traits>

namespace example {

template <class Policy, class Attention>
cuda_policy cuda_policy_of(const listing<Policy, Attention>& from) {
  using attention_type = std::invoke_result_t<Attention, const kvilt::rope&, float>;
  return {from.name, [from](const session_shape& s, const kvilt::gpu& exec) {
            const session_shape shape = shape_with(from.scales, s);
            return with_groups(
                policy_for(from, s.head_dim), shape, [&]<class... Kept>(const kvilt::layer_group<Kept>&... groups) {
                  return std::unique_ptr<cuda_session>(std::make_unique<cached_cuda_session<attention_type, Kept...>>(
                      shape, exec, from.attention, groups...));
                });
          }};
}

}  // namespace example
