#pragma once

#include <kvilt/core/math.hpp>
#include <kvilt/gpu/gpu.cuh>
#include <kvilt/gpu/memory.hpp>
#include <kvilt/tiers/memory_transfer.hpp>

#include <cstring>
#include <unordered_map>

namespace kvilt::inline KVILT_ABI {

/// Slots in page-locked memory of the host, behind a pool in a GPU's memory. Copies run in a stream of the engine's, the
/// one in which pages are written: so a page may be handed out as soon as its copy is queued, and whoever loads a page
/// queues what reads it behind. The host waits for nothing but the checks: a slot's bytes are summed up when they have
/// arrived, and again before they go back. Pieces are device pointers. Used on one device, the current one.
template <checksum Checksum = crc32c>
class stream_transfer final : public transfer {
 public:
  /// Throws as `pinned_memory` does.
  stream_transfer(page_memory pool, idx slots, const gpu& exec)
      : pool_(std::move(pool)),
        exec_(exec),
        stride_(round_up(pool_.page_bytes(), 256)),
        sums_(std::size_t(checked(slots))),
        bytes_(pinned_memory(), std::size_t(slots * stride_)) {}
  ~stream_transfer() override {
    // NOTE: what is under way reads and writes the slots.
    for (const auto& each : jobs_) {
      if (each.second.end == nullptr) continue;
      (void)cudaEventSynchronize(each.second.end);
      (void)cudaEventDestroy(each.second.end);
    }
  }

  idx slots() const override { return idx(sums_.size()); }
  idx page_bytes() const override { return pool_.page_bytes(); }

  ticket start(copy_way way, std::span<const page_copy> batch) override {
    job j{way, {batch.begin(), batch.end()}, std::vector<copy_result>(batch.size(), copy_result::failed), nullptr};
    if (cudaEventCreateWithFlags(&j.end, cudaEventDisableTiming) == cudaSuccess)
      for (std::size_t i = 0; i < batch.size(); ++i) j.results[i] = begin(way, batch[i]);
    if (!j.end || cudaEventRecord(j.end, exec_.stream()) != cudaSuccess) {
      // NOTE: without an event nobody knows when copies have ended that may have been queued.
      (void)cudaStreamSynchronize(exec_.stream());
      j.results.assign(batch.size(), copy_result::failed);
    }
    (void)cudaGetLastError();  // said in the results; the next call is not to hear of it
    jobs_.emplace(++newest_, std::move(j));
    return newest_;
  }
  bool done(ticket which, std::span<copy_result> results) override {
    const auto found = jobs_.find(which);
    detail::expects(found != jobs_.end() && found->second.results.size() == results.size(), "transfer ", which, " of ",
                    results.size(), " pages is asked for; there is no such one");
    job& j = found->second;
    const cudaError_t status = j.end ? cudaEventQuery(j.end) : cudaErrorUnknown;
    if (status == cudaErrorNotReady) return false;
    for (std::size_t i = 0; i < results.size(); ++i) {
      results[i] = status == cudaSuccess ? j.results[i] : copy_result::failed;
      if (j.way == copy_way::store && results[i] == copy_result::done)
        sums_[std::size_t(j.batch[i].slot)] = sum_of(j.batch[i]);
    }
    if (j.end) (void)cudaEventDestroy(j.end);
    (void)cudaGetLastError();
    jobs_.erase(found);
    return true;
  }

 private:
  struct job {
    copy_way way;
    std::vector<page_copy> batch;
    std::vector<copy_result> results;
    cudaEvent_t end = nullptr;
  };

  static idx checked(idx slots) {
    detail::expects(slots >= 0 && slots < idx(1) << 31, "a tier of ", slots, " slots; 0 to 2^31 - 1 can be");
    return slots;
  }
  unsigned char* at(idx slot) const { return bytes_.data() + slot * stride_; }
  std::uint64_t sum_of(const page_copy& c) const {
    return Checksum::of(detail::sum_of_tag<Checksum>(c.tag), at(c.slot), std::size_t(pool_.page_bytes()));
  }

  copy_result begin(copy_way way, const page_copy& c) const {
    const bool store = way == copy_way::store;
    if (!store && sum_of(c) != sums_[std::size_t(c.slot)]) return copy_result::damaged;
    unsigned char* slot = at(c.slot);
    if (c.page < 0) {
      // NOTE: a row of the host's: nothing is in flight in a slot whose last copy has ended.
      std::memcpy(store ? slot : c.row, store ? c.row : slot, std::size_t(pool_.page_bytes()));
      return copy_result::done;
    }
    bool queued = true;
    pool_.each(c.page, nullptr, [&](unsigned char* piece, idx bytes) {
      queued = queued &&
               cudaMemcpyAsync(store ? slot : piece, store ? piece : slot, std::size_t(bytes),
                               store ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, exec_.stream()) == cudaSuccess;
      slot += bytes;
    });
    return queued ? copy_result::done : copy_result::failed;
  }

  page_memory pool_;
  gpu exec_;
  idx stride_;
  std::vector<std::uint64_t> sums_;  // [slots]
  buffer<memory_space::host> bytes_;
  std::unordered_map<ticket, job> jobs_;  // under way
  ticket newest_ = 0;
};

}  // namespace kvilt::inline KVILT_ABI
