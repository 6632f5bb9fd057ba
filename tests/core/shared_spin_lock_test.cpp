#include "support/catch.hpp"

#include <kvilt/core/shared_spin_lock.hpp>

#include <atomic>
#include <chrono>
#include <ctime>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

namespace {

using namespace kvilt;

constexpr auto longer_than_spins = std::chrono::milliseconds(50);

// That this thread has been at work.
double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

void wait_for(const std::atomic<bool>& that) {
  while (!that) std::this_thread::yield();
}

}  // namespace

TEST_CASE("shared_spin_lock: who writes is alone, and sees what was written before", "[core][threads]") {
  shared_spin_lock lock;
  long written = 0;  // NOTE: no atomics, so that TSan hears of two at a time
  std::atomic<int> torn{0};
  std::vector<std::thread> all;
  for (int t = 0; t < 4; ++t)
    all.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        if ((i + t) % 4 == 0) {
          const std::unique_lock writing(lock);
          written = written + 1;
        } else {
          const std::shared_lock reading(lock);
          const long first = written;
          std::this_thread::yield();
          torn += written != first;
        }
      }
    });
  for (std::thread& t : all) t.join();
  CHECK(written == 2000);
  CHECK(torn == 0);
}

TEST_CASE("shared_spin_lock: readers do not wait for each other", "[core][threads]") {
  shared_spin_lock lock;
  const std::shared_lock mine(lock);
  bool read = false;
  std::thread([&] {
    const std::shared_lock reading(lock);
    read = true;
  }).join();
  CHECK(read);
}

TEST_CASE("shared_spin_lock: who waits long sleeps, and is woken", "[core][threads]") {
  shared_spin_lock lock;
  for (const bool reads : {false, true}) {
    std::atomic<bool> waits{false}, in{false};
    double at_work = 0;
    std::unique_lock mine(lock);
    std::thread other([&] {
      waits = true;
      const double before = processor_seconds();
      if (reads) {
        const std::shared_lock reading(lock);
        in = true;
      } else {
        const std::unique_lock writing(lock);
        in = true;
      }
      at_work = processor_seconds() - before;
    });
    wait_for(waits);
    std::this_thread::sleep_for(longer_than_spins);
    CHECK_FALSE(in);
    mine.unlock();
    other.join();
    CHECK(in);
    CHECK(at_work < 0.02);  // it has slept
  }
}

TEST_CASE("shared_spin_lock: a writer waits for readers, and those who come later for it", "[core][threads]") {
  shared_spin_lock lock;
  std::atomic<int> order{0};
  std::atomic<bool> waits{false};
  int writer = 0, reader = 0;
  std::shared_lock mine(lock);
  std::thread writes([&] {
    waits = true;
    const std::unique_lock writing(lock);
    std::this_thread::sleep_for(longer_than_spins);
    writer = ++order;
  });
  wait_for(waits);
  std::this_thread::sleep_for(longer_than_spins);
  CHECK(order == 0);
  std::thread reads([&] {
    const std::shared_lock reading(lock);
    reader = ++order;
  });
  std::this_thread::sleep_for(longer_than_spins);
  CHECK(order == 0);
  mine.unlock();
  writes.join();
  reads.join();
  CHECK(writer == 1);
  CHECK(reader == 2);
}
