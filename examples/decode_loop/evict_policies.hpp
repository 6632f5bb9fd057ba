#pragma once

#include "policies.hpp"

#include <vector>

namespace example {

// Every policy of a list that evicts tokens, once for each of these shares of the text, in percent; the others as they
// are. Throws std::invalid_argument for a share that is none.
std::vector<policy_entry> at_shares(const std::vector<policy_entry>& policies, const std::vector<double>& percents);

}  // namespace example
