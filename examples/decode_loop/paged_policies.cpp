#include "paged_policies.hpp"

#include "entry.hpp"

namespace example {

std::vector<policy_entry> paged_policies() {
  return entries_of(paged_list());
}

}  // namespace example
