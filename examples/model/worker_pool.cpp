#include "worker_pool.hpp"

#include <algorithm>

namespace example {

worker_pool::worker_pool(int threads) {
  for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
}

worker_pool::~worker_pool() {
  stop_ = true;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void worker_pool::run(int count, const std::function<void(int)>& task) {
  if (helpers_.empty() || count <= 1) {
    for (int i = 0; i < count; ++i) task(i);
    return;
  }
  task_ = &task;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(helpers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  drain();
  for (int busy = busy_.load(std::memory_order_acquire); busy != 0; busy = busy_.load(std::memory_order_acquire)) {
    busy_.wait(busy, std::memory_order_acquire);
  }
}

void worker_pool::run_ranges(int count, int grain, const std::function<void(int, int)>& task) {
  const int ranges = std::clamp(count / std::max(grain, 1), 1, threads());
  run(ranges, [&](int range) {
    const auto bound = [&](int r) { return static_cast<int>(static_cast<std::int64_t>(count) * r / ranges); };
    task(bound(range), bound(range + 1));
  });
}

void worker_pool::help() {
  for (std::uint32_t seen = 0;;) {
    round_.wait(seen, std::memory_order_acquire);
    ++seen;  // a round ends only when every helper has taken part, so none is ever missed
    if (stop_) return;
    drain();
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

void worker_pool::drain() {
  for (int i = next_.fetch_add(1, std::memory_order_relaxed); i < count_;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    (*task_)(i);
  }
}

}  // namespace example
