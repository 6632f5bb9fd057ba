#include "pages/hashes.hpp"
#include "pages/simulated_engine.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

#include <kvilt/pages/cost_aware.hpp>
#include <kvilt/pages/lru.hpp>
#include <kvilt/pages/page_manager.hpp>
#include <kvilt/pages/priority.hpp>

#include <vector>

namespace {

using namespace kvilt;
using support::containing;

std::vector<manager_shape> some_shapes() {
  std::vector<manager_shape> all;
  for (const int page_tokens : {1, 3, 4, 16})
    for (const idx pages : {5, 24, 70}) {
      all.push_back({page_tokens, 6, {{pages}}});
      all.push_back({page_tokens, 6, {{pages}, {pages / 2 + 2, 2 * page_tokens}}});
      all.push_back({page_tokens, 6, {{pages}, {pages}, {pages / 2 + 3, 5, 3}}});
    }
  return all;
}
template <class Eviction, class Hash>
std::vector<idx> run(const manager_shape& shape, int seed) {
  using manager = page_manager<Eviction, Hash>;
  support::dice dice{std::uint64_t(seed)};
  simulated::engine<manager, support::dice> engine(shape, dice);
  engine.run(2000);
  return engine.trace();
}

}  // namespace

TEMPLATE_TEST_CASE("page_manager: an engine at random, over policies, groups and hashes", "[pages]", lru, aged_lfu,
                   priority, cost_aware<>) {
  int seed = 0;
  for (const manager_shape& shape : some_shapes()) {
    ++seed;
    INFO(seed << ": pages of " << shape.page_tokens << ", " << shape.groups.size() << " groups of "
              << shape.groups[0].pages);
    const std::vector<idx> plain = run<TestType, token_hash>(shape, seed);
    CHECK((run<TestType, one_place>(shape, seed) == plain));
    if (!std::is_same_v<TestType, aged_lfu>) CHECK((run<TestType, one_name>(shape, seed) == plain));
  }
}
