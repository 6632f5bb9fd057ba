// Any order of operations on a page manager, of each policy, with one to three groups: every row that a sequence sees is
// what its text says, and no page is lost.
#include "fuzz/fuzz.hpp"
#include "pages/hashes.hpp"
#include "pages/simulated_engine.hpp"

#include <kvilt/pages/cost_aware.hpp>
#include <kvilt/pages/lru.hpp>
#include <kvilt/pages/priority.hpp>

namespace {

using namespace kvilt;

constexpr int most_operations = 120;

template <class Eviction>
void run(const manager_shape& shape, bool collide, fuzz::choices& choose) {
  if (collide) {
    simulated::engine<page_manager<Eviction, one_name>, fuzz::choices>(shape, choose).run(most_operations);
  } else {
    simulated::engine<page_manager<Eviction>, fuzz::choices>(shape, choose).run(most_operations);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::choices choose(data, size);
  const int page_tokens = 1 + choose.below(5), groups = 1 + choose.below(3);
  manager_shape shape{page_tokens, 6, {{idx(2 + choose.below(30))}}};
  if (groups > 1) shape.groups.push_back({idx(1 + choose.below(30)), idx(choose.below(3 * page_tokens))});
  if (groups > 2) shape.groups.push_back({idx(1 + choose.below(30)), idx(1 + choose.below(12)), idx(choose.below(6))});
  const int policy = choose.below(8);
  try {
    switch (policy % 4) {
      case 0:
        run<lru>(shape, policy > 3, choose);
        break;
      case 1:
        run<aged_lfu>(shape, policy > 3, choose);
        break;
      case 2:
        run<priority>(shape, policy > 3, choose);
        break;
      default:
        run<cost_aware<>>(shape, policy > 3, choose);
    }
  } catch (const std::exception& e) {
    fuzz::fail(e.what());
  }
  return 0;
}
