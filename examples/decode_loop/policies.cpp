#include "policies.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <stdexcept>

namespace example {
namespace {

// Levenshtein's distance.
std::size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);  // of the prefix of a read so far, to every prefix of b
  std::iota(row.begin(), row.end(), std::size_t(0));
  for (const char letter : a) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (letter != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

const policy_entry& find_policy(const std::vector<policy_entry>& known, const std::string& name) {
  const auto found = std::find_if(known.begin(), known.end(), [&](const policy_entry& p) { return p.name == name; });
  if (found != known.end()) return *found;
  const auto nearest = std::min_element(known.begin(), known.end(), [&](const policy_entry& a, const policy_entry& b) {
    return edits_between(a.name, name) < edits_between(b.name, name);
  });
  throw std::invalid_argument("no policy is called '" + name + "'; the nearest is '" + nearest->name +
                              "', and --list names all " + std::to_string(known.size()));
}

}  // namespace

std::vector<policy_entry> all_policies() {
  std::vector<policy_entry> all;
  for (auto family : {contiguous_policies, paged_policies, narrow_policies, scale_policies, ring_policies,
                      evict_policies, user_policies})
    std::ranges::move(family(), std::back_inserter(all));
  return all;
}

std::vector<policy_entry> choose_policies(const std::vector<std::string>& names) {
  const std::vector<policy_entry> known = all_policies();
  std::vector<policy_entry> chosen;
  if (names.empty()) std::ranges::copy_if(known, std::back_inserter(chosen), &policy_entry::by_default);
  for (const std::string& name : names) {
    const bool again = std::ranges::find(chosen, name, &policy_entry::name) != chosen.end();
    if (!again) chosen.push_back(find_policy(known, name));
  }
  return chosen;
}

std::string leave_out_without_kernels(std::vector<policy_entry>& chosen, const std::vector<std::string>& names) {
  std::string said;
  for (const policy_entry& p : chosen) {
    if (p.no_kernel.empty()) continue;
    if (std::ranges::find(names, p.name) != names.end())
      throw std::invalid_argument("policy " + p.name + " has no kernel for a GPU: " + p.no_kernel);
    said += (said.empty() ? "Left out, without a kernel for a GPU: " : ", ") + p.name + " (" + p.no_kernel + ")";
  }
  std::erase_if(chosen, [](const policy_entry& p) { return !p.no_kernel.empty(); });
  return said;
}

}  // namespace example
