#include "narrow_policies.hpp"

#include "entry.hpp"

namespace example {

std::vector<policy_entry> narrow_policies() {
  return entries_of(narrow_list());
}

}  // namespace example
