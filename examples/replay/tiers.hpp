#pragma once

#include <kvilt/tiers/transfer.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace example {

// A tier that is simulated: so many bytes, and so many of them a second on their way back.
struct tier_spec {
  std::string name;
  std::int64_t bytes = 0;
  double bytes_per_second = 0;
};

// "host:SIZE" or "disk:SIZE", SIZE as 80GB or 80GiB, then perhaps @ and GB/s; without it host has 50 and disk 5. Throws
// std::invalid_argument.
tier_spec tier_of(const std::string& text);

// Moves nothing, and takes as long as the bytes of a load would take, one batch after another. What leaves the pool, or
// goes from one tier to the next, is thought to move besides.
class simulated_transfer final : public kvilt::transfer {
 public:
  simulated_transfer(const tier_spec& tier, std::int64_t page_bytes, const double& now)
      : slots_(tier.bytes / page_bytes), page_bytes_(page_bytes), rate_(tier.bytes_per_second), now_(now) {}

  kvilt::idx slots() const override { return slots_; }
  kvilt::idx page_bytes() const override { return page_bytes_; }
  ticket start(kvilt::copy_way way, std::span<const kvilt::page_copy> batch) override {
    double end = now_;
    if (way == kvilt::copy_way::load && batch.front().page >= 0)
      end = free_ = std::max(now_, free_) + double(page_bytes_) * double(batch.size()) / rate_;
    ends_.emplace(++newest_, end);
    return newest_;
  }
  bool done(ticket which, std::span<kvilt::copy_result> results) override {
    const auto found = ends_.find(which);
    if (found->second > now_) return false;
    ends_.erase(found);
    std::ranges::fill(results, kvilt::copy_result::done);
    return true;
  }

 private:
  kvilt::idx slots_, page_bytes_;
  double rate_;
  const double& now_;
  double free_ = 0;  // when all that is under way has arrived
  std::map<ticket, double> ends_;
  ticket newest_ = 0;
};

}  // namespace example
