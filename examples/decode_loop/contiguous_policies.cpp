#include "contiguous_policies.hpp"

#include "entry.hpp"

namespace example {

std::vector<policy_entry> contiguous_policies() {
  return entries_of(contiguous_list());
}

}  // namespace example
