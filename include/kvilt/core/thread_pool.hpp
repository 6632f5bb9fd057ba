#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/executor.hpp>

#include <atomic>
#include <thread>
#include <vector>

namespace kvilt::inline v0 {

/// Threads that wait for work: items are handed out one by one, the caller works too. Bits of the library's results do
/// not depend on how many there are.
class thread_pool final : public executor {
 public:
  /// `threads` workers, the caller of `run` included. Throws `invalid_argument` for less than 1.
  explicit thread_pool(int threads) {
    detail::expects(threads >= 1, "a pool of ", threads, " threads; at least 1 is needed");
    for (int w = 1; w < threads; ++w) threads_.emplace_back([this, w] { serve(w); });
  }
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  ~thread_pool() override {
    stop_ = true;
    round_.fetch_add(1);
    round_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  int workers() const override { return int(threads_.size()) + 1; }

  void run(idx items, task body, void* context) override {
    body_ = body;
    context_ = context;
    items_ = items;
    next_.store(0, std::memory_order_relaxed);
    busy_.store(int(threads_.size()), std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    work(0);
    for (int left; (left = busy_.load(std::memory_order_acquire)) != 0;) wait_while(busy_, left);
  }

 private:
  static constexpr int spins = 2000;  // about 10 us: steps follow each other closer than a sleep takes

  template <class T>
  static void wait_while(const std::atomic<T>& value, T old) {
    for (int i = 0; i < spins; ++i)
      if (value.load(std::memory_order_acquire) != old) return;
    value.wait(old, std::memory_order_acquire);
  }
  void work(int worker) {
    for (idx i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < items_;) body_(context_, i, worker);
  }
  void serve(int worker) {
    for (unsigned seen = 0;;) {
      wait_while(round_, seen);
      seen = round_.load(std::memory_order_acquire);
      if (stop_) return;
      work(worker);
      if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
    }
  }

  task body_ = nullptr;
  void* context_ = nullptr;
  idx items_ = 0;
  std::atomic<idx> next_{0};
  std::atomic<int> busy_{0};
  std::atomic<unsigned> round_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace kvilt::inline v0
