#if __has_include(<catch2/catch_all.hpp>)
#define KVILT_CATCH_3
#else
#define CATCH_CONFIG_RUNNER
#endif
#include "support/catch.hpp"

namespace {

int skipped = 0;
int finished = 0;

#ifdef KVILT_CATCH_3

struct skip_counter : Catch::EventListenerBase {
  using Catch::EventListenerBase::EventListenerBase;

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    ++finished;
    if (stats.totals.testCases.skipped > 0) ++skipped;
  }
};

#else

struct skip_counter : Catch::TestEventListenerBase {
  using Catch::TestEventListenerBase::TestEventListenerBase;

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    Catch::TestEventListenerBase::testCaseEnded(stats);
    ++finished;
    if (support::test_skipped()) ++skipped;
    support::test_skipped() = false;
  }
};

#endif

}  // namespace

CATCH_REGISTER_LISTENER(skip_counter)

// 0 passed, 1 failed, SKIPPED_CODE when every test that ran was skipped. Catch2's own code is a count of failures, in
// which 4 may also mean skipped.
int main(int argc, char** argv) {
  const int result = Catch::Session().run(argc, argv);
  if (finished > 0 && skipped == finished) return SKIPPED_CODE;
  return result == 0 ? 0 : 1;
}
