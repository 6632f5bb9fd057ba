#include "ring_policies.hpp"

#include "entry.hpp"

namespace example {

std::vector<policy_entry> ring_policies() {
  return entries_of(ring_list());
}

}  // namespace example
