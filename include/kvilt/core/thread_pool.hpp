#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/executor.hpp>

#include <atomic>
#include <thread>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// Threads that wait for work: items are handed out one by one, the caller works too. Bits of the library's results do
/// not depend on how many there are.
class thread_pool final : public executor {
 public:
  /// `threads` workers, the caller of `run` included. Throws `invalid_argument` for less than 1.
  explicit thread_pool(int threads) {
    detail::expects(threads >= 1, "a pool of ", threads, " threads; at least 1 is needed");
    threads_.reserve(std::size_t(threads) - 1);
    struct undo {  // a thread that does not start leaves no other behind
      thread_pool* pool;
      ~undo() {
        if (pool) pool->stop();
      }
    } on_failure{this};
    for (int w = 1; w < threads; ++w) threads_.emplace_back([this, w] { serve(w); });
    on_failure.pool = nullptr;
  }
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  ~thread_pool() override { stop(); }

  int workers() const override { return int(threads_.size()) + 1; }

  /// While another call is at work (from another thread, or from within a task) the caller does all by itself.
  void run(idx items, task body, void* context) override {
    if (taken_.test_and_set(std::memory_order_acquire)) {
      for (idx i = 0; i < items; ++i) body(context, i, 0);
      return;
    }
    body_ = body;
    context_ = context;
    items_ = items;
    next_.store(0, std::memory_order_relaxed);
    busy_.store(int(threads_.size()), std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    work(0);
    for (int left; (left = busy_.load(std::memory_order_acquire)) != 0;) wait_while(busy_, left);
    taken_.clear(std::memory_order_release);
  }

 private:
  static constexpr int spins = 2000;  // about 10 us: steps follow each other closer than a sleep takes

  template <class T>
  static void wait_while(const std::atomic<T>& value, T old) {
    for (int i = 0; i < spins; ++i)
      if (value.load(std::memory_order_acquire) != old) return;
    value.wait(old, std::memory_order_acquire);
  }
  void stop() {
    stop_ = true;
    round_.fetch_add(1);
    round_.notify_all();
    for (std::thread& t : threads_) t.join();
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
  std::atomic_flag taken_;
  std::vector<std::thread> threads_;
};

}  // namespace kvilt::inline KVILT_ABI
