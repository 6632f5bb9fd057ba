#pragma once

#include "decode.hpp"
#include "scheduler.hpp"

#include <kvilt/gpu/memory.hpp>

#include <vector>

namespace example {

/// Owns the memory, schedules, and lets the GPU decode.
class engine {
 public:
  explicit engine(const engine_shape& shape);

  void step() {
    scheduler_.next(batch_);
    decoder_.step();
  }

  const engine_shape& shape() const { return shape_; }
  const scheduler& schedule() const { return scheduler_; }
  const batch_lists& batch() const { return batch_; }  // of the last step, in the host's memory
  std::vector<bfloat16> copy_of_pool() const { return copy_of(pool_); }
  std::vector<bfloat16> copy_of_out() const { return copy_of(out_); }

 private:
  using device_buffer = kvilt::buffer<kvilt::memory_space::device>;
  static std::vector<bfloat16> copy_of(const device_buffer& numbers);

  engine_shape shape_;
  device_buffer pool_, qkv_, out_, device_batch_;
  kvilt::buffer<kvilt::memory_space::host> staged_;
  batch_lists batch_;
  scheduler scheduler_;
  device_decoder decoder_;
};

}  // namespace example
