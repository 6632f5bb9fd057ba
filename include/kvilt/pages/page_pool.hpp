#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/math.hpp>
#include <kvilt/core/types.hpp>
#include <kvilt/pages/moved_count.hpp>
#include <kvilt/pages/page_array.hpp>

#include <cstdint>
#include <deque>
#include <span>

namespace kvilt::inline KVILT_ABI {

/// A page is in one state at any time:
///   free     nobody has it, nothing is in it
///   used     it has holders, one or more
///   cached   it has no holder, but a name: whoever named it (`page_pool::name`) may hold it again or forget it
///   pending  it has no holder, but work that the engine has launched may still touch it
enum class page_state : unsigned char { free, used, cached, pending };

/// Names a point in the engine's own order of work: of two, the larger one is later (the value of a timeline semaphore, a
/// step's number). 0 is before all work.
using completion = std::uint64_t;

enum class page_event : unsigned char { taken, freed };

/// Called when a page is handed out and when it is free again, say to poison what it holds. Does not call the pool.
struct page_hook {
  void* self = nullptr;
  void (*call)(void* self, page_id page, page_event event) = nullptr;
};

/// Pages by state, `free + used + cached + pending = total`, and the most that were used at one time.
struct page_counts {
  idx total = 0;
  idx free = 0;
  idx used = 0;
  idx cached = 0;
  idx pending = 0;
  idx most_used = 0;
  friend bool operator==(const page_counts&, const page_counts&) = default;
};

/// Hands out page ids, counts who holds them, and takes them back: ids and counts, never bytes. The newest freed page is
/// handed out first. Every verb is O(1) a page, and takes 8 bytes a page. Throws `invalid_argument` for a page of which
/// it is not true what a verb says; nothing has changed then.
class page_pool {
 public:
  static constexpr idx most_pages = (idx(1) << 31) - 256;  // lists over pages have a few ids of their own
  static constexpr idx most_holders = (idx(1) << 28) - 1;

  /// Throws `invalid_argument` where no pool can have so many pages.
  static void check(idx pages) {
    detail::expects(pages >= 0 && pages <= most_pages, "a pool of ", pages, " pages; 0 to ", most_pages, " can be");
  }
  /// Pages 0 to `pages` - 1, handed out from 0 up.
  explicit page_pool(idx pages, page_hook hook = {})
      : words_(std::size_t(checked(pages)), word(page_state::free, false, 0)), stack_(std::size_t(pages)), hook_(hook) {
    for (idx p = pages; p-- > 0;) push(page_id(p));
  }

  idx total() const { return idx(words_.size()); }
  idx free() const { return free_; }
  idx used() const { return used_; }
  idx cached() const { return cached_; }
  idx pending() const { return pending_; }
  /// Work up to here is complete.
  completion completed() const { return completed_; }
  page_counts counts() const { return {total(), free(), used(), cached_, pending_, most_used_}; }

  page_state state(page_id p) const { return state_of(at(p)); }
  /// The page is soon asked for.
  void prefetch(page_id p) const { __builtin_prefetch(words_.data() + p, 1); }
  bool named(page_id p) const { return at(p) & name_bit; }
  /// How many hold the page.
  idx holders(page_id p) const { return state(p) == page_state::used ? idx(at(p) & value_mask) : 0; }

  /// A page that was free, with one holder. Throws `out_of_pages`.
  page_id take() {
    detail::expects<out_of_pages>(free() > 0, "a page is asked for; 0 of ", total(), " are free");
    const page_id p = hand_out();
    used_ += 1;
    most_used_ = larger(most_used_, used());
    check_counts();
    return p;
  }
  /// The same for each of `pages`, or for none.
  void take(std::span<page_id> pages) {
    detail::expects<out_of_pages>(idx(pages.size()) <= free(), pages.size(), " pages are asked for; ", free(), " of ",
                                  total(), " are free");
    for (page_id& p : pages) p = hand_out();
    used_ += idx(pages.size());
    most_used_ = larger(most_used_, used());
    check_counts();
  }

  /// One holder more of a page that is used, or that has a name and no holder.
  void hold(page_id p) {
    std::uint32_t& w = checked_word(p, "held");
    detail::expects(state_of(w) == page_state::used ? (w & value_mask) < most_holders : (w & name_bit) != 0, "page ", p,
                    " is held: it is not in use and has no name, or has ", most_holders, " holders");
    if (state_of(w) == page_state::used) {
      ++w;
      return;
    }
    const bool waits = state_of(w) == page_state::pending;
    (waits ? pending_ : cached_) -= 1;
    used_ += 1;
    w = word(page_state::used, true, 1) | (waits ? work_bit : 0);
    most_used_ = larger(most_used_, used());
    check_counts();
  }

  /// One holder less. Work up to `after` may still touch the page: without a holder it is pending until then. Returns
  /// the page's state.
  page_state give(page_id p, completion after = 0) {
    std::uint32_t& w = checked_word(p, "given back");
    if (w == word(page_state::used, false, 1) && after <= completed_) [[likely]] {  // the usual one
      used_ -= 1;
      const page_state now = settle(p);
      check_counts();
      return now;
    }
    detail::expects(state_of(w) == page_state::used, "page ", p, " is given back twice");
    detail::expects(after <= completed_ || after >= newest_, "page ", p, " is given back after ", after,
                    "; one was given back after ", newest_, " before");
    newest_ = newest_ < after ? after : newest_;
    if ((w & value_mask) > 1) {
      w = (w - 1) | (after > completed_ ? work_bit : 0);
      return page_state::used;
    }
    // NOTE: of work that others left behind it is only known that it is no later than any that was named.
    const completion last = w & work_bit ? newest_ : after;
    used_ -= 1;
    const page_state now = last > completed_ ? defer(p, last) : settle(p);
    check_counts();
    return now;
  }

  /// All work up to `done` is complete: pages that waited for it are free, or cached where they have a name, and then
  /// `cached(page)` is called. O(1) for each page that was given back after such work.
  template <class Cached>
  void complete(completion done, Cached&& cached) {
    completed_ = completed_ < done ? done : completed_;
    for (; !batches_.empty() && batches_.front().after <= completed_; batches_.pop_front())
      for (idx n = batches_.front().pages; n > 0; --n) {
        const page_id p = waiting_.front();
        waiting_.pop_front();
        // NOTE: whoever holds a pending page again leaves its place in the queue, which then speaks of nobody.
        if (words_[std::size_t(p)] != word(page_state::pending, named(p), batches_.front().serial)) continue;
        pending_ -= 1;
        if (settle(p) == page_state::cached) cached(p);
        check_counts();
      }
  }
  void complete(completion done) {
    complete(done, [](page_id) {});
  }

  /// Without a holder, a page with a name is cached, not free. The page has one holder: it is told which name, and others
  /// would go on from it without holding what the name stands for.
  void name(page_id p) {
    std::uint32_t& w = checked_word(p, "named");
    detail::expects(state_of(w) == page_state::used && !(w & name_bit) && (w & value_mask) == 1, "page ", p,
                    " is named: it must have one holder and no name");
    w |= name_bit;
  }
  /// Takes the name away; a cached page is free then.
  void forget(page_id p) {
    std::uint32_t& w = checked_word(p, "forgotten");
    detail::expects((w & name_bit) != 0, "page ", p, " is forgotten: it has no name");
    w &= ~name_bit;
    if (state_of(w) != page_state::cached) return;
    cached_ -= 1;
    settle(p);
    check_counts();
  }

 private:
  struct batch {
    completion after;
    idx pages;
    std::uint32_t serial;
  };
  // A page's word: its state, whether it has a name, whether one who no longer holds it left work behind, and its
  // holders, or the batch that it waits in.
  static constexpr int state_shift = 30;
  static constexpr std::uint32_t name_bit = std::uint32_t(1) << 29, work_bit = name_bit >> 1, value_mask = work_bit - 1;
  static constexpr std::uint32_t word(page_state s, bool named, std::uint32_t value) {
    return std::uint32_t(s) << state_shift | (named ? name_bit : 0) | value;
  }
  static constexpr page_state state_of(std::uint32_t w) { return page_state(w >> state_shift); }

  static idx checked(idx pages) {
    check(pages);
    return pages;
  }
  // In checked mode, after each verb: no page is lost, and none is counted twice.
  void check_counts() const {
    if constexpr (KVILT_IS_CHECKED)
      detail::expects(free() + used_ + cached_ + pending_ == total(), free(), " pages are free, ", idx(used_),
                      " used, ", idx(cached_), " cached and ", idx(pending_), " pending, of ", total());
  }
  std::uint32_t& checked_word(page_id p, const char* verb) {
    detail::expects(p >= 0 && p < total(), "page ", p, " is ", verb, "; the pool has pages 0 to ", total() - 1);
    return words_[std::size_t(p)];
  }
  std::uint32_t at(page_id p) const { return const_cast<page_pool*>(this)->checked_word(p, "asked for"); }
  void tell(page_id p, page_event e) const {
    if (hook_.call) hook_.call(hook_.self, p, e);
  }

  page_state defer(page_id p, completion after) {
    if (batches_.empty() || batches_.back().after != after)
      batches_.push_back({after, 0, serial_ = (serial_ + 1) & value_mask});
    ++batches_.back().pages;
    waiting_.push_back(p);
    pending_ += 1;
    words_[std::size_t(p)] = word(page_state::pending, words_[std::size_t(p)] & name_bit, serial_);
    return page_state::pending;
  }
  void push(page_id p) {
    stack_[std::size_t(free())] = p;
    free_ += 1;
  }
  page_id hand_out() {
    free_ -= 1;
    const page_id p = stack_[std::size_t(free())];
    words_[std::size_t(p)] = word(page_state::used, false, 1);
    tell(p, page_event::taken);
    return p;
  }
  // Nobody holds the page, and nothing touches it.
  page_state settle(page_id p) {
    const bool has_name = words_[std::size_t(p)] & name_bit;
    const page_state s = has_name ? page_state::cached : page_state::free;
    words_[std::size_t(p)] = word(s, has_name, 0);
    if (has_name) {
      cached_ += 1;
    } else {
      push(p);
      tell(p, page_event::freed);
    }
    return s;
  }

  detail::page_array<std::uint32_t> words_;  // [pages]
  detail::page_array<page_id> stack_;        // [pages], of those that are free
  std::deque<page_id> waiting_;              // in order of their batches
  std::deque<batch> batches_;
  completion newest_ = 0;  // that a page waits or waited for
  completion completed_ = 0;
  std::uint32_t serial_ = 0;
  detail::moved_count<idx> free_, used_, cached_, pending_, most_used_;
  page_hook hook_;
};

}  // namespace kvilt::inline KVILT_ABI
