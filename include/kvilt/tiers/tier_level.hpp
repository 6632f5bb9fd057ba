#pragma once

#include <kvilt/pages/eviction.hpp>
#include <kvilt/tiers/tier_directory.hpp>
#include <kvilt/tiers/transfer.hpp>

#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// What becomes of a tier's pages.
struct tier_options {
  bool passes_on = true;     // what has to make room goes to the next tier, where there is one, and else is lost
  bool keeps_loaded = true;  // what went back to the pool stays too: it need not be copied again when it leaves that
};

/// What a tier counts, in pages; all but `used` only grows.
struct tier_counters {
  idx slots = 0;
  idx used = 0;
  idx stored = 0;         // that came here
  idx loaded = 0;         // that went back to the pool
  idx passed_on = 0;      // that went to the next tier
  idx dropped = 0;        // that were lost to make room
  idx refused = 0;        // that found no slot
  idx failed_stores = 0;  // that were lost because the transfer failed
  idx failed_loads = 0;
  idx damaged = 0;  // that came back as other bytes than were stored, and were not served
  friend bool operator==(const tier_counters&, const tier_counters&) = default;
};

namespace detail {

/// The slots of one tier: which node's page is in each, and in which order they go.
class tier_level {
 public:
  static constexpr int nobody = -1, kept_apart = -2;

  template <class Eviction>
  tier_level(transfer& moves, const tier_options& options, Eviction eviction, int page_tokens)
      : moves_(&moves), options_(options), order_(new order_of<Eviction>(std::move(eviction), page_tokens)) {
    slots_.resize(std::size_t(moves.slots()));
    for (int s = int(slots_.size()); s-- > 0;) free_.push_back(s);
    counts_.slots = moves.slots();
  }

  transfer& moves() { return *moves_; }
  const transfer& moves() const { return *moves_; }
  const tier_options& options() const { return options_; }
  tier_counters& counts() { return counts_; }
  tier_counters counters() const {
    tier_counters c = counts_;
    c.used = idx(slots_.size() - free_.size());
    return c;
  }
  int node_of(int slot) const { return slots_[std::size_t(slot)].node; }
  std::uint64_t tag_of(int slot) const { return slots_[std::size_t(slot)].tag; }
  /// What was kept apart there under this tag is there.
  bool keeps(int slot, std::uint64_t tag) const { return node_of(slot) == kept_apart && tag_of(slot) == tag; }
  bool ready(int slot) const { return !slots_[std::size_t(slot)].filling; }

  bool any_free() const { return !free_.empty(); }
  /// A free slot for a node's page, which is to be stored there under the slot's tag.
  int take(int node) {
    const int s = free_.back();
    free_.pop_back();
    slots_[std::size_t(s)] = {};
    slots_[std::size_t(s)].node = node;
    slots_[std::size_t(s)].tag = ++newest_tag_;
    slots_[std::size_t(s)].filling = true;
    return s;
  }
  /// The first of the order leaves it; -1: there is none.
  int pop() {
    const int s = order_->pop();
    if (s >= 0) slots_[std::size_t(s)].idle = false;
    return s;
  }
  /// Its page is there: `depth` pages before it in its prefix.
  void filled(int slot, int depth) {
    slots_[std::size_t(slot)].filling = false;
    order_->enter(slot, depth);
    rest(slot);
  }
  /// The same of a page without a name, which stays until it is released.
  void filled_apart(int slot) { slots_[std::size_t(slot)].filling = false; }
  /// It cannot go before what follows on it.
  void wait(int slot) { slots_[std::size_t(slot)].waits = true; }
  void wait_no_longer(int slot) {
    if (std::exchange(slots_[std::size_t(slot)].waits, false)) rest(slot);
  }
  void touch(int slot) {
    if (!slots_[std::size_t(slot)].idle) return;
    leave_order(slot);
    rest(slot);
  }
  /// One reader more: it is not given to another until that has ended.
  void read(int slot, bool hit) {
    state& s = slots_[std::size_t(slot)];
    if (s.idle) leave_order(slot);
    s.waits = false;
    ++s.readers;
    if (hit) order_->hit(slot);
  }
  void end_read(int slot) {
    state& s = slots_[std::size_t(slot)];
    if (--s.readers > 0) return;
    if (s.node == nobody)
      give(slot);
    else
      rest(slot);
  }
  /// Its page is of no use any more.
  void release(int slot) {
    state& s = slots_[std::size_t(slot)];
    if (s.idle) leave_order(slot);
    s.node = nobody;
    s.waits = false;
    if (!s.filling && s.readers == 0) give(slot);
  }
  /// A store has ended, of a page that is of no use any more or has failed.
  void empty(int slot) {
    slots_[std::size_t(slot)].filling = false;
    release(slot);
  }

  struct batch {
    transfer::ticket ticket = 0;
    std::vector<int> slots;
  };
  std::vector<batch>& stores() { return stores_; }

 private:
  template <class Eviction>
  class order_of final : public slot_order {
   public:
    order_of(Eviction e, int page_tokens) : policy_(std::move(e)), page_tokens_(page_tokens) {}
    void enter(int slot, idx depth) override {
      policy_.stored(slot, false);
      policy_.given(slot, -1, {depth * page_tokens_, 0});
    }
    void hit(int slot) override { policy_.hit(slot); }
    void idle(int slot) override { policy_.idle(slot); }
    void busy(int slot) override { policy_.busy(slot); }
    int pop() override { return policy_.pop(); }

   private:
    Eviction policy_;
    int page_tokens_;
  };
  struct state {
    int node = nobody;
    std::uint64_t tag = 0;
    int readers = 0;
    bool filling = false;
    bool idle = false;   // in the order
    bool waits = false;  // out of it until nothing follows on its page
  };

  void rest(int slot) {
    state& s = slots_[std::size_t(slot)];
    if (s.filling || s.readers > 0 || s.node < 0) return;
    s.idle = true;
    order_->idle(slot);
  }
  void leave_order(int slot) {
    slots_[std::size_t(slot)].idle = false;
    order_->busy(slot);
  }
  void give(int slot) {
    slots_[std::size_t(slot)] = {};
    free_.push_back(slot);
  }

  transfer* moves_;
  tier_options options_;
  std::unique_ptr<slot_order> order_;
  std::vector<state> slots_;
  std::vector<int> free_;
  std::vector<batch> stores_;  // under way
  std::uint64_t newest_tag_ = 0;
  tier_counters counts_;
};

}  // namespace detail
}  // namespace kvilt::inline KVILT_ABI
