#pragma once

#include <kvilt/core/math.hpp>
#include <kvilt/core/memory.hpp>
#include <kvilt/tiers/crc32c.hpp>
#include <kvilt/tiers/page_memory.hpp>
#include <kvilt/tiers/transfer.hpp>

#include <cstring>

namespace kvilt::inline KVILT_ABI {
namespace detail {

/// The checksum that a slot begins with: that of its tag.
template <checksum C>
std::uint64_t sum_of_tag(std::uint64_t tag) {
  unsigned char bytes[sizeof(tag)];
  std::memcpy(bytes, &tag, sizeof(tag));
  return C::of(0, bytes, sizeof(bytes));
}

}  // namespace detail

/// Slots in host memory, `slots * page_bytes` bytes of a resource, each page's rounded up to 64; copies are made, and
/// checked, by whoever starts them. Both the pool and the slots are memory that the host reads.
template <checksum Checksum = crc32c>
class memory_transfer final : public transfer {
 public:
  memory_transfer(page_memory pool, idx slots, memory<memory_space::host> from)
      : pool_(std::move(pool)),
        stride_(round_up(pool_.page_bytes(), 64)),
        sums_(std::size_t(checked(slots))),
        bytes_(from, std::size_t(slots * stride_)) {}

  idx slots() const override { return idx(sums_.size()); }
  idx page_bytes() const override { return pool_.page_bytes(); }

  ticket start(copy_way way, std::span<const page_copy> batch) override {
    std::vector<copy_result> results;
    results.reserve(batch.size());
    for (const page_copy& c : batch) results.push_back(way == copy_way::store ? store(c) : load(c));
    return ended_.add(std::move(results));
  }
  bool done(ticket which, std::span<copy_result> results) override { return ended_.take(which, results); }

 private:
  static idx checked(idx slots) {
    detail::expects(slots >= 0 && slots < idx(1) << 31, "a tier of ", slots, " slots; 0 to 2^31 - 1 can be");
    return slots;
  }
  unsigned char* at(idx slot) const { return bytes_.data() + slot * stride_; }

  // NOTE: piece by piece, so that the checksum reads what the copy has brought near.
  copy_result store(const page_copy& c) {
    std::uint64_t sum = detail::sum_of_tag<Checksum>(c.tag);
    unsigned char* to = at(c.slot);
    pool_.each(c.page, c.row, [&](const unsigned char* from, idx bytes) {
      std::memcpy(to, from, std::size_t(bytes));
      sum = Checksum::of(sum, to, std::size_t(bytes));
      to += bytes;
    });
    sums_[std::size_t(c.slot)] = sum;
    return copy_result::done;
  }
  copy_result load(const page_copy& c) const {
    std::uint64_t sum = detail::sum_of_tag<Checksum>(c.tag);
    const unsigned char* from = at(c.slot);
    pool_.each(c.page, c.row, [&](unsigned char* to, idx bytes) {
      std::memcpy(to, from, std::size_t(bytes));
      sum = Checksum::of(sum, to, std::size_t(bytes));
      from += bytes;
    });
    return sum == sums_[std::size_t(c.slot)] ? copy_result::done : copy_result::damaged;
  }

  page_memory pool_;
  idx stride_;
  std::vector<std::uint64_t> sums_;  // [slots]
  buffer<memory_space::host> bytes_;
  detail::ended_transfers ended_;
};

}  // namespace kvilt::inline KVILT_ABI
