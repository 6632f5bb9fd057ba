#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace example {

// A few threads that share out numbered tasks. The calling thread is one of them.
class worker_pool {
 public:
  explicit worker_pool(int threads);
  ~worker_pool();
  worker_pool(const worker_pool&) = delete;
  worker_pool& operator=(const worker_pool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls task(0) to task(count - 1), each once, in no given order, and returns when all are done. Tasks must not throw
  // and must not call run; one run at a time.
  void run(int count, const std::function<void(int)>& task);

  // Splits [0, count) into one range for each thread; ranges shorter than `grain` are not worth a thread.
  void run_ranges(int count, int grain, const std::function<void(int begin, int end)>& task);

 private:
  void help();
  void drain();

  const std::function<void(int)>* task_ = nullptr;
  int count_ = 0;
  bool stop_ = false;
  std::atomic<int> next_{0};
  std::atomic<int> busy_{0};
  std::atomic<std::uint32_t> round_{0};  // each run starts a new one; the plain members above are published by it
  std::vector<std::thread> helpers_;
};

}  // namespace example
