#include "user_policies.hpp"

#include "entry.hpp"

namespace example {

std::vector<policy_entry> user_policies() {
  return entries_of(user_list());
}

}  // namespace example
