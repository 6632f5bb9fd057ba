#pragma once

#include <kvilt/core/math.hpp>
#include <kvilt/gpu/gpu.cuh>
#include <kvilt/gpu/memory.hpp>

#include <cstddef>
#include <utility>

namespace kvilt::inline KVILT_ABI::detail {

/// Page-locked memory out of which kernels and copies read later than the host has gone on: blocks in turn, each of which
/// is written again only when what was sent from it has been read. The host waits where all are still to be read.
class staging {
 public:
  static constexpr int blocks = 8;

  /// Blocks of at least `bytes` bytes, of the current device's streams.
  explicit staging(std::size_t bytes) : least_(bytes) {}

  /// The next block, free to be written. It stays the next until something is sent from it.
  unsigned char* take(std::size_t bytes) {
    block& b = blocks_[next_];
    b.wait();
    if (b.bytes.bytes() < bytes || b.bytes.data() == nullptr) {
      std::size_t size = b.bytes.data() ? 2 * b.bytes.bytes() : least_;
      if (size < bytes) size = bytes;
      b.bytes = buffer<memory_space::host>(pinned_memory(), std::size_t(round_up(idx(size), 4096)));
    }
    return b.bytes.data();
  }
  /// What reads the block taken last is in the stream.
  void sent(const gpu& exec) {
    check_cuda(cudaEventRecord(blocks_[next_].read, exec.stream()), "an event after what reads staged memory");
    blocks_[next_].in_flight = true;
    next_ = (next_ + 1) % blocks;
  }

 private:
  struct block {
    block() { check_cuda(cudaEventCreateWithFlags(&read, cudaEventDisableTiming), "an event of the current device"); }
    block(const block&) = delete;
    block& operator=(const block&) = delete;
    ~block() {
      if (in_flight) (void)cudaEventSynchronize(read);
      (void)cudaEventDestroy(read);
    }
    void wait() {
      if (in_flight) check_cuda(cudaEventSynchronize(read), "the wait for what reads staged memory");
      in_flight = false;
    }

    buffer<memory_space::host> bytes{pinned_memory(), 0};
    cudaEvent_t read = nullptr;
    bool in_flight = false;
  };

  std::size_t least_;
  block blocks_[blocks];
  int next_ = 0;
};

}  // namespace kvilt::inline KVILT_ABI::detail
