#pragma once

#include "../contiguous_policies.hpp"
#include "../narrow_policies.hpp"
#include "../paged_policies.hpp"
#include "../ring_policies.hpp"
#include "../scale_policies.hpp"
#include "../user_policies.hpp"
#include "cuda_policies.cuh"
#include "cuda_policy_of.cuh"

#include <cstddef>
#include <tuple>
#include <utility>

namespace example {

template <bool Mine, class Policy, class Attention, bool HasKernel>
void add_cuda_policy(const listing<Policy, Attention, HasKernel>& from, std::vector<cuda_policy>& to) {
  if constexpr (Mine && HasKernel) to.push_back(cuda_policy_of(from));
}

template <int Part>
void add_cuda_policies(std::vector<cuda_policy>& to) {
  const auto all =
      std::tuple_cat(contiguous_list(), paged_list(), narrow_list(), scale_list(), ring_list(), user_list());
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (add_cuda_policy<I % cuda_parts == Part>(std::get<I>(all), to), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<decltype(all)>>());
}

}  // namespace example
