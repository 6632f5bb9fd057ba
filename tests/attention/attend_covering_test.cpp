#include "support/catch.hpp"
#include "support/policies.hpp"

// The pairs below are what the attend_*_test.cpp of this folder run over.

TEST_CASE("attend: the covering holds every pair of formats, layouts and retentions", "[attention]") {
  std::set<std::array<int, 3>> met;
  for (const support::covering_case& c : support::covering()) {
    met.insert({0, c.k, c.layout});
    met.insert({1, c.v, c.layout});
    met.insert({2, c.k, c.retention});
    met.insert({3, c.v, c.retention});
    met.insert({4, c.layout, c.retention});
    met.insert({5, c.k, c.v});
  }
  using namespace support;
  const int kinds = 2 * formats * layouts + 2 * formats * retentions + layouts * retentions;
  const int k_and_v = formats * layouts;  // all but one V for each K
  CHECK(int(met.size()) == kinds + k_and_v);
}

TEST_CASE("attend: the covering holds every pair of a dim or a group size with anything else", "[attention]") {
  using namespace support;
  pairs_met met;
  for (const covering_case& c : covering()) met.add(c);
  const auto is_met = [&](int i, int a, int j, int b) {
    INFO("factors " << i << " = " << a << " and " << j << " = " << b);
    CHECK(met.has(i, a, j, b));
  };
  for (int group : groups) {
    for (int f = 0; f < formats; ++f) is_met(0, f, 6, group), is_met(1, f, 6, group);
    for (int l = 0; l < layouts; ++l) is_met(2, l, 6, group);
    for (int r = 0; r < retentions; ++r) is_met(3, r, 6, group);
    for (int dim : dims) is_met(4, dim, 6, group), is_met(5, dim, 6, group);
  }
  for (int dim : dims) {
    for (int f = 0; f < formats; ++f)
      if (!in_groups(f) || dim % 32 == 0) is_met(0, f, 4, dim), is_met(1, f, 5, dim);
    for (int r = 0; r < retentions; ++r) is_met(3, r, 4, dim), is_met(3, r, 5, dim);
    for (int l = 0; l < layouts; ++l) is_met(2, l, 4, dim), is_met(2, l, 5, dim);
  }
}
