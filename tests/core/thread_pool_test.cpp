#include "support/catch.hpp"

#include <kvilt/core/thread_pool.hpp>

#include <atomic>
#include <thread>
#include <vector>

namespace {

using namespace kvilt;

/// How often each item ran; workers that were out of range or ran two calls at a time are counted as faults.
struct record {
  explicit record(idx items, int workers) : runs(std::size_t(items)), busy(std::size_t(workers)) {}

  void operator()(idx item, int worker) {
    if (worker < 0 || std::size_t(worker) >= busy.size() || busy[std::size_t(worker)].exchange(true)) {
      ++faults;
      return;
    }
    ++runs[std::size_t(item)];
    busy[std::size_t(worker)] = false;
  }
  bool each_ran_once() const {
    for (const std::atomic<int>& n : runs)
      if (n != 1) return false;
    return faults == 0;
  }

  std::vector<std::atomic<int>> runs;
  std::vector<std::atomic<bool>> busy;
  std::atomic<int> faults{0};
};

}  // namespace

TEST_CASE("thread_pool: every item runs once, on a worker that is not busy", "[core][threads]") {
  for (const int threads : {1, 2, 4, 7}) {
    thread_pool pool(threads);
    const host h(pool);
    REQUIRE(h.workers() == threads);
    for (const idx items : {0, 1, 2, 3, 64, 1000}) {
      record r(items, threads);
      h.for_each(items, r);
      CHECK(r.each_ran_once());
    }
  }
}

TEST_CASE("thread_pool: many short rounds follow each other", "[core][threads]") {
  thread_pool pool(3);
  const host h(pool);
  std::vector<idx> sums(3);  // of each worker, unguarded: a round ends before the next begins
  for (int round = 0; round < 3000; ++round)
    h.for_each(5, [&](idx item, int worker) { sums[std::size_t(worker)] += item; });
  CHECK(sums[0] + sums[1] + sums[2] == 3000 * 10);
}

TEST_CASE("thread_pool: what the items wrote is seen after the round", "[core][threads]") {
  thread_pool pool(4);
  const host h(pool);
  std::vector<idx> squares(257);
  for (int round = 1; round < 50; ++round) {
    h.for_each(257, [&](idx i, int) { squares[std::size_t(i)] = round * i; });
    for (idx i = 0; i < 257; ++i) REQUIRE(squares[std::size_t(i)] == round * i);
  }
}

TEST_CASE("thread_pool: calls from several threads at once lose no item", "[core][threads]") {
  for (const int threads : {1, 2, 3}) {
    thread_pool pool(threads);
    const host h(pool);
    std::atomic<int> lost{0};
    const auto call = [&] {
      for (int round = 0; round < 200; ++round) {
        record r(round % 40, threads);  // of this call alone: its workers are one call at a time
        h.for_each(round % 40, r);
        lost += !r.each_ran_once();
      }
    };
    std::vector<std::thread> callers;
    for (int i = 0; i < 3; ++i) callers.emplace_back(call);
    for (std::thread& t : callers) t.join();
    CHECK(lost == 0);
  }
}

TEST_CASE("thread_pool: a call from within a task loses no item", "[core][threads]") {
  for (const int threads : {1, 2, 4}) {
    thread_pool pool(threads);
    const host h(pool);
    for (int round = 0; round < 50; ++round) {
      std::vector<std::atomic<int>> runs(7 * 11);
      h.for_each(
          7, [&](idx outer, int) { h.for_each(11, [&](idx inner, int) { ++runs[std::size_t(outer * 11 + inner)]; }); });
      int wrong = 0;
      for (const std::atomic<int>& n : runs) wrong += n != 1;
      REQUIRE(wrong == 0);
      // The pool is whole again.
      record r(20, threads);
      h.for_each(20, r);
      REQUIRE(r.each_ran_once());
    }
  }
}

TEST_CASE("thread_pool: pools that never work end", "[core][threads]") {
  for (int i = 0; i < 50; ++i) thread_pool pool(3);
  SUCCEED();
}

TEST_CASE("thread_pool: less than one thread is refused", "[core]") {
  CHECK_THROWS_WITH(thread_pool(0), support::containing("0 threads"));
  CHECK_THROWS_AS(thread_pool(-1), invalid_argument);
}
