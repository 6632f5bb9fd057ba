#include "scale_policies.hpp"

#include "entry.hpp"

namespace example {

std::vector<policy_entry> scale_policies() {
  return entries_of(scale_list());
}

}  // namespace example
