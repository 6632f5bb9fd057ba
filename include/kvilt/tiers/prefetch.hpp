#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/types.hpp>
#include <kvilt/pages/token_hash.hpp>
#include <kvilt/tiers/transfer.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// Names a prefetch; stale when it is over.
struct prefetch {
  int slot = -1;
  std::uint32_t generation = 0;
  friend bool operator==(const prefetch&, const prefetch&) = default;
};

/// What prefetches counted; it only grows.
struct prefetch_counters {
  idx asked = 0;      // prefetches that were begun
  idx pages = 0;      // that were on their way to the pool
  idx arrived = 0;    // of these, that prompts find there
  idx cancelled = 0;  // prefetches
  idx no_room = 0;    // pages for which the pool had no place, or no sequence was free
  friend bool operator==(const prefetch_counters&, const prefetch_counters&) = default;
};

template <prefix_hash Hash>
class page_tiers;

/// A sequence that does not run, and whose partly filled page is kept apart until it goes on; see `page_tiers::preempt`.
/// It knows what it is of: rows are those of one text under one tenant's keys.
class parked_sequence {
 public:
  parked_sequence() = default;
  parked_sequence(parked_sequence&& other) noexcept { swap(other); }
  parked_sequence& operator=(parked_sequence&& other) noexcept {
    parked_sequence taken(std::move(other));
    swap(taken);
    return *this;
  }

  /// Tokens that it had, and the extra keys that it was opened under.
  std::span<const token_id> text() const { return text_; }
  std::span<const std::uint64_t> keys() const { return keys_; }
  /// Whether rows are kept that no other has: until `resume` or `forget`.
  bool keeps_rows() const { return slot_ >= 0; }

 private:
  template <prefix_hash Hash>
  friend class page_tiers;

  void swap(parked_sequence& other) noexcept {
    text_.swap(other.text_);
    keys_.swap(other.keys_);
    std::swap(by_, other.by_);
    std::swap(slot_, other.slot_);
    std::swap(tag_, other.tag_);
  }

  std::vector<token_id> text_;
  std::vector<std::uint64_t> keys_;
  const void* by_ = nullptr;  // whose slot it is
  int slot_ = -1;
  std::uint64_t tag_ = 0;
};

namespace detail {

/// A prefetch as the tiers know it.
struct prefetch_job {
  bool open = false, landed = false, cancelled = false;
  std::uint32_t generation = 0;
  kvilt::sequence sequence;
  struct page {
    int node, level, slot;
    copy_result result;
  };
  struct part {
    transfer::ticket ticket;
    int level;
    std::vector<std::size_t> of;  // `pages`
  };
  std::vector<page> pages;  // in the order of the prompt
  std::vector<part> parts;  // under way
};

/// Those that are not over, by name.
class prefetch_jobs {
 public:
  prefetch open() {
    const auto unused = std::ranges::find(jobs_, false, &prefetch_job::open);
    const int n = int(unused - jobs_.begin());
    if (unused == jobs_.end()) jobs_.emplace_back();
    prefetch_job& j = jobs_[std::size_t(n)];
    const std::uint32_t generation = j.generation + 1;
    j = {};
    j.open = true;
    j.generation = generation;
    return {n, generation};
  }
  prefetch_job& operator[](const prefetch& p) {
    expects(p.slot >= 0 && std::size_t(p.slot) < jobs_.size() && jobs_[std::size_t(p.slot)].open &&
                jobs_[std::size_t(p.slot)].generation == p.generation,
            "prefetch ", p.slot, " (its ", p.generation, "th) is over");
    return jobs_[std::size_t(p.slot)];
  }
  const prefetch_job& operator[](const prefetch& p) const { return const_cast<prefetch_jobs&>(*this)[p]; }
  std::vector<prefetch_job>& all() { return jobs_; }

 private:
  std::vector<prefetch_job> jobs_;
};

}  // namespace detail
}  // namespace kvilt::inline KVILT_ABI
