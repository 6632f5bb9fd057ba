#include "support/catch.hpp"

#include <kvilt/core/executor.hpp>

#include <vector>

namespace {

using namespace kvilt;

/// An engine's own pool: runs the items backwards and says so.
struct backwards final : executor {
  int workers() const override { return 2; }
  void run(idx items, task body, void* context) override {
    ++rounds;
    for (idx i = items; i-- > 0;) body(context, i, int(i % 2));
  }
  int rounds = 0;
};

}  // namespace

TEST_CASE("executor: without a pool the calling thread runs the items in order", "[core]") {
  std::vector<idx> seen;
  host().for_each(4, [&](idx i, int worker) {
    CHECK(worker == 0);
    seen.push_back(i);
  });
  CHECK(seen == std::vector<idx>{0, 1, 2, 3});
  CHECK(host().workers() == 1);
}

TEST_CASE("executor: an engine's own pool runs them", "[core]") {
  backwards pool;
  const host h(pool);
  CHECK(h.workers() == 2);
  std::vector<idx> seen;
  h.for_each(3, [&](idx i, int worker) {
    CHECK(worker == i % 2);
    seen.push_back(i);
  });
  CHECK(seen == std::vector<idx>{2, 1, 0});
  CHECK(pool.rounds == 1);
}

TEST_CASE("executor: a single item does not wake a pool", "[core]") {
  backwards pool;
  int runs = 0;
  host(pool).for_each(1, [&](idx, int worker) { runs += worker == 0; });
  CHECK(runs == 1);
  CHECK(pool.rounds == 0);
}
