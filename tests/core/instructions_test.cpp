#include "support/catch.hpp"
#include "support/oracle.hpp"

#include <kvilt/core/executor.hpp>

using namespace kvilt;

TEST_CASE("instructions: each set has its name", "[core]") {
  CHECK(name_of(instruction_set::portable) == std::string("portable"));
  CHECK(name_of(instruction_set::neon) == std::string("NEON"));
  CHECK(name_of(instruction_set::avx2) == std::string("AVX2"));
  CHECK(name_of(instruction_set::avx512) == std::string("AVX-512"));
}

TEST_CASE("instructions: the widest of those that the machine supports is used", "[core]") {
  const auto sets = support::instruction_sets();  // from the narrowest on
  REQUIRE(!sets.empty());
  CHECK(sets.front() == instruction_set::portable);
  CHECK(best_instructions() == sets.back());
  CHECK(host().instructions() == sets.back());
  // A set is not had without what it is built on.
  if (supports(instruction_set::avx512)) CHECK(supports(instruction_set::avx2));
}

TEST_CASE("instructions: a host takes a set that the machine supports, and keeps the rest", "[core]") {
  struct alone final : executor {
    int workers() const override { return 5; }
    void run(idx items, task body, void* context) override {
      for (idx i = 0; i < items; ++i) body(context, i, 0);
    }
  } pool;
  const host on_pool(pool);
  for (const instruction_set set : support::instruction_sets()) {
    CHECK(host().with(set).instructions() == set);
    CHECK(on_pool.with(set).workers() == 5);
  }
  CHECK(on_pool.instructions() == best_instructions());
}

TEST_CASE("instructions: a host refuses what the machine lacks, by name", "[core]") {
  bool all = true;
  for (const instruction_set set : {instruction_set::neon, instruction_set::avx2, instruction_set::avx512}) {
    if (supports(set)) continue;
    all = false;
    CHECK_THROWS_WITH(host().with(set),
                      support::containing(name_of(set) + std::string(" is not supported by this machine")));
  }
  if (all) support::skip("this machine has every set");
}

TEST_CASE("instructions: a host refuses what is no set", "[core]") {
  CHECK_THROWS_AS(host().with(instruction_set(200)), invalid_argument);
}
