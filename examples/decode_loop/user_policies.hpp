#pragma once

#include "../my_policy/my_policy.hpp"
#include "listing.hpp"

#include <kvilt/kvilt.hpp>

namespace example {

// Add your own here: a line as in the other files, or one with a function that makes the policy. Where its members are
// not marked KVILT_HD, on_host_only(named<...>(...), "why") keeps nvcc away from it.
inline auto user_list() {
  using six_bit = kvilt::policy<mine::token_major, mine::six_bit>;
  const auto make_six_bit = [](int head_dim) { return six_bit(mine::six_bit{head_dim}, mine::six_bit{head_dim}); };
  return on_request(std::tuple{
      named<six_bit>("six_bit", kvilt::causal{}, make_six_bit),
      named<six_bit>("six_bit_fading", mine::fading{0.01f}, make_six_bit),
  });
}

}  // namespace example
