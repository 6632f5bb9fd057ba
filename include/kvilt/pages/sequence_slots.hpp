#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/types.hpp>
#include <kvilt/pages/id_lists.hpp>
#include <kvilt/pages/manager_shape.hpp>
#include <kvilt/pages/moved_count.hpp>
#include <kvilt/pages/page_array.hpp>

#include <utility>
#include <vector>

namespace kvilt::inline KVILT_ABI::detail {

/// What is known of each open sequence, by its handle; a slot is used again under another generation, with the `State`
/// that the sequence before left in it. A stale handle is refused. O(1) each. `find` may run beside any other verb where
/// all slots were made before.
template <class State, class Threads>
class sequence_slots {
 public:
  explicit sequence_slots(int most) : most_(most), age_(most, priorities + 1) { slots_.reserve(std::size_t(most)); }

  idx open() const { return open_; }
  idx free() const { return most_ - open_; }

  /// Makes all slots now; `fresh()` is called for each.
  template <class Fresh>
  void make_all(Fresh&& fresh) {
    for (int slot = most_; slot-- > 0; fresh()) unused_.push_back(slot);
    slots_.resize(std::size_t(most_));
  }

  void check_free() const { expects<out_of_pages>(open_ < most_, "all ", idx(most_), " sequences are open"); }
  /// One must be free, and `priority` 0 to 7, or `nobodys` for one that `last_opened` does not name. `fresh()` is called
  /// for a slot that was never used.
  static constexpr int nobodys = priorities;
  template <class Fresh>
  sequence open(int priority, Fresh&& fresh) {
    if (unused_.empty()) {
      unused_.push_back(int(slots_.size()));
      slots_.emplace_back();
      fresh();
    }
    const int slot = unused_.back();
    unused_.pop_back();
    slot_type& s = slots_[std::size_t(slot)];
    open_ += 1;
    age_.push_back(priority, slot);
    return {slot, next(s)};
  }
  void close(int slot) {
    next(slots_[std::size_t(slot)]);
    open_ -= 1;
    age_.remove(slot);
    unused_.push_back(slot);
  }

  KVILT_ALWAYS_INLINE const State& find(sequence s) const {
    expects(std::size_t(s.slot) < slots_.size() && generation(s.slot) == s.generation && s.generation % 2, "sequence ",
            s.slot, " (of generation ", s.generation, ") is not open");
    return (*this)[s.slot];
  }
  KVILT_ALWAYS_INLINE State& find(sequence s) { return const_cast<State&>(std::as_const(*this).find(s)); }
  const State& operator[](int slot) const { return slots_[std::size_t(slot)].state; }
  State& operator[](int slot) { return slots_[std::size_t(slot)].state; }

  /// The one that was opened last among those of the lowest priority.
  sequence last_opened() const {
    expects(open_ > 0, "no sequence is open");
    int p = 0;
    while (p < nobodys && age_.empty(p)) ++p;
    expects(p != nobodys, "no sequence is open but ahead of its prompt");
    const page_id slot = age_.last(p);
    return {slot, slots_[std::size_t(slot)].generation};
  }

 private:
  struct alignas(Threads::alignment) slot_type {
    std::uint32_t generation = 0;  // odd while it is open
    State state;
  };
  // NOTE: a stale handle is compared with what another thread may be opening.
  std::uint32_t generation(int slot) const { return Threads::load(slots_[std::size_t(slot)].generation); }
  static std::uint32_t next(slot_type& s) {
    const std::uint32_t g = s.generation + 1;
    Threads::store(s.generation, g);
    return g;
  }
  moved_count<int> most_;  // NOTE: what was moved from has no free slot
  moved_count<idx> open_;
  page_array<slot_type> slots_;
  std::vector<int> unused_;
  id_lists age_;  // open slots by priority, the one opened last at the end
};

}  // namespace kvilt::inline KVILT_ABI::detail
