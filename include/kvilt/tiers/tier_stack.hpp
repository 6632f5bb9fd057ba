#pragma once

#include <kvilt/tiers/tier_level.hpp>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace kvilt::inline KVILT_ABI::detail {

/// Tiers, the nearest first, and the directory of what is in them and in the pool. A node is there while its page is in
/// either, and while somebody relies on it; without it what follows on it in tiers could not be found, and goes with it.
class tier_stack {
 public:
  explicit tier_stack(int page_tokens) : directory_(page_tokens) {}

  template <class Eviction>
  void add(transfer& moves, const tier_options& options, Eviction eviction, int page_tokens) {
    expects(int(levels_.size()) < tier_directory::most_tiers, "there are ", tier_directory::most_tiers,
            " tiers already, the most that there can be");
    expects(levels_.empty() || levels_[0].moves().page_bytes() == moves.page_bytes(), "a tier of pages of ",
            moves.page_bytes(), " bytes; those of the first have ",
            levels_.empty() ? 0 : levels_[0].moves().page_bytes());
    expects(eviction.pages() >= moves.slots(), "a policy for ", eviction.pages(), " slots, of ", moves.slots());
    levels_.emplace_back(moves, options, std::move(eviction), page_tokens);
    row_.resize(std::size_t(moves.page_bytes()));
  }

  tier_directory& directory() { return directory_; }
  const tier_directory& directory() const { return directory_; }
  std::vector<tier_level>& levels() { return levels_; }
  const std::vector<tier_level>& levels() const { return levels_; }

  /// Stores pages of the pool, which nodes of the directory had and have no more, in the first tier. They are pinned, and
  /// unpinned here.
  void store(std::span<const std::pair<int, page_id>> pages) {
    std::vector<page_copy> batch;
    std::size_t first = 0;  // that is pinned
    const auto start = [&](std::size_t last) {
      start_stores(batch);
      for (; first < last; ++first) unpin(pages[first].first);
    };
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const auto [node, page] = pages[i];
      if (levels_.empty() || directory_[node].page >= 0 || directory_[node].in_tiers()) continue;
      int slot = take(0, node);
      if (slot < 0) {
        start(i);  // NOTE: what is stored before it makes room, once it is there
        settle_oldest(0);
        slot = take(0, node);
      }
      if (slot >= 0)
        batch.push_back({slot, page, nullptr, levels_[0].tag_of(slot)});
      else
        ++levels_[0].counts().refused;
    }
    start(pages.size());
  }

  void pin(int node) { ++directory_[node].pins; }
  void unpin(int node) {
    --directory_[node].pins;
    forget_if_lost(node);
    for (std::size_t n = stranded_.size(); n-- > 0 && !stranded_.empty();) {
      const int first = stranded_.front();
      stranded_.erase(stranded_.begin());
      forget_if_lost(first);
    }
  }

  /// What came of stores that have ended.
  void settle() {
    for (int level = 0; level < int(levels_.size()); ++level) settle(level);
  }

  /// The nearest tier with a page that is complete there, or -1.
  int nearest(int node) const {
    for (int level = 0; level < int(levels_.size()); ++level)
      if (const int s = directory_[node].slots[std::size_t(level)]; s >= 0 && levels_[std::size_t(level)].ready(s))
        return level;
    return -1;
  }
  /// The page is in this tier no more.
  void drop(int level, int node) {
    const int slot = std::exchange(directory_[node].slots[std::size_t(level)], -1);
    if (slot >= 0) levels_[std::size_t(level)].release(slot);
  }
  /// The page is in the pool: what follows on it is found without its slots, which may go.
  void pooled(int node) {
    for (std::size_t level = 0; level < levels_.size(); ++level)
      if (const int s = directory_[node].slots[level]; s >= 0) levels_[level].wait_no_longer(s);
  }
  /// Nothing is left of a page: the directory forgets it, and what follows on it, once nobody relies on any of these.
  void forget_if_lost(int node) {
    if (!lost(node)) return;
    if (pinned_behind(node)) {
      if (std::ranges::find(stranded_, node) == stranded_.end()) stranded_.push_back(node);
      return;
    }
    const int before = directory_[node].before;
    for (int at = node;;) {
      if (directory_[at].child >= 0) {
        at = directory_[at].child;
        continue;
      }
      const int up = directory_[at].before;
      for (int level = 0; level < int(levels_.size()); ++level) {
        levels_[std::size_t(level)].counts().dropped += directory_[at].slots[std::size_t(level)] >= 0;
        drop(level, at);
      }
      directory_.remove(at);
      std::erase(stranded_, at);
      if (at == node) break;
      at = up;
    }
    if (before >= 0 && directory_[before].child < 0) pooled(before);
  }

  /// A slot that nobody else gets until it is released; -1 where there is none. For what has no name.
  int take_apart() { return levels_.empty() ? -1 : take(0, tier_level::kept_apart); }

  /// Ends a transfer of one page.
  static copy_result finish(transfer& moves, copy_way way, const page_copy& c) {
    const transfer::ticket ticket = moves.start(way, {&c, 1});
    copy_result result = copy_result::failed;
    while (!moves.done(ticket, {&result, 1})) {
    }
    return result;
  }
  void count_load(int level, copy_result r) {
    tier_counters& c = levels_[std::size_t(level)].counts();
    ++(r == copy_result::done ? c.loaded : r == copy_result::failed ? c.failed_loads : c.damaged);
  }

 private:
  bool lost(int node) const {
    const tier_directory::node& n = directory_[node];
    return n.page < 0 && n.pins == 0 && !n.in_tiers();
  }
  /// Somebody relies on a page that follows on this one.
  bool pinned_behind(int node) const {
    for (int at = directory_[node].child; at >= 0;) {
      if (directory_[at].pins > 0) return true;
      int next = directory_[at].child;
      while (next < 0 && at != node) {
        next = directory_[at].next;
        if (next < 0) at = directory_[at].before;
      }
      at = next;
    }
    return false;
  }

  // NOTE: of all that is under way only what has just begun is asked for, and what began first: else a queue that lags
  // would be asked as often as it is long for each page more.
  void start_stores(std::vector<page_copy>& batch) {
    if (batch.empty()) return;
    tier_level::batch known{levels_[0].moves().start(copy_way::store, batch), {}};
    for (const page_copy& c : batch) known.slots.push_back(int(c.slot));
    levels_[0].stores().push_back(std::move(known));
    batch.clear();
    settle(0, levels_[0].stores().size() - 1);
  }
  void settle_oldest(int level) {
    while (!levels_[std::size_t(level)].stores().empty() && settle(level, 0)) {
    }
  }
  void settle(int level) {
    for (std::size_t i = 0; i < levels_[std::size_t(level)].stores().size();) i += !settle(level, i);
  }
  // Whether the batch number `i` has ended, and is there no more.
  bool settle(int level, std::size_t i) {
    tier_level& l = levels_[std::size_t(level)];
    const tier_level::batch& b = l.stores()[i];
    std::vector<copy_result> results(b.slots.size());
    if (!l.moves().done(b.ticket, results)) return false;
    const std::vector<int> slots = b.slots;
    l.stores().erase(l.stores().begin() + std::ptrdiff_t(i));
    for (std::size_t k = 0; k < slots.size(); ++k) filled(level, slots[k], results[k]);
    return true;
  }
  void filled(int level, int slot, copy_result r) {
    tier_level& l = levels_[std::size_t(level)];
    const int node = l.node_of(slot);
    if (r == copy_result::done && node >= 0) {
      ++l.counts().stored;
      return l.filled(slot, directory_[node].depth);
    }
    l.counts().failed_stores += r != copy_result::done;
    if (node >= 0) directory_[node].slots[std::size_t(level)] = -1;
    l.empty(slot);
    if (node >= 0) forget_if_lost(node);
  }

  /// A slot of a tier for a node's page; what is in it passes on, or is lost. -1: none can be had.
  int take(int level, int node) {
    tier_level& l = levels_[std::size_t(level)];
    while (!l.any_free()) {
      const int victim = l.pop();
      if (victim < 0) return -1;
      const int goes = l.node_of(victim);
      if (pass_on(level, victim) || l.node_of(victim) != goes) continue;
      if (needed(goes, level)) {
        l.wait(victim);
        continue;
      }
      ++l.counts().dropped;
      drop(level, goes);
      forget_if_lost(goes);
    }
    const int slot = l.take(node);
    if (node >= 0) directory_[node].slots[std::size_t(level)] = slot;
    return slot;
  }
  /// What follows on the page is found through it, and it is nowhere else.
  bool needed(int node, int level) const {
    const tier_directory::node& n = directory_[node];
    if (n.child < 0 || n.page >= 0) return false;
    for (int other = 0; other < int(levels_.size()); ++other)
      if (other != level && n.slots[std::size_t(other)] >= 0) return false;
    return true;
  }
  /// Whether the slot is free because its page went to the next tier, or was found to be none.
  bool pass_on(int level, int slot) {
    tier_level& l = levels_[std::size_t(level)];
    const int below = level + 1, node = l.node_of(slot);
    if (!l.options().passes_on || below == int(levels_.size())) return false;
    if (directory_[node].slots[std::size_t(below)] < 0) {
      // NOTE: pinned, so that it stays whatever has to go for it.
      pin(node);
      const int to = take(below, node);
      if (to < 0) return unpin(node), false;
      tier_level& next = levels_[std::size_t(below)];
      const copy_result read = finish(l.moves(), copy_way::load, {slot, -1, row_.data(), l.tag_of(slot)});
      if (read != copy_result::done) {
        ++(read == copy_result::failed ? l.counts().failed_loads : l.counts().damaged);
        directory_[node].slots[std::size_t(below)] = -1;
        next.empty(to);
      } else {
        const copy_result written = finish(next.moves(), copy_way::store, {to, -1, row_.data(), next.tag_of(to)});
        filled(below, to, written);
        if (written != copy_result::done) return unpin(node), false;
        ++l.counts().passed_on;
      }
      drop(level, node);
      unpin(node);
      return true;
    }
    drop(level, node);
    return true;
  }

  tier_directory directory_;
  std::vector<tier_level> levels_;
  std::vector<int> stranded_;       // nodes of which nothing is left, before others that somebody relies on
  std::vector<unsigned char> row_;  // a page on its way from one tier to the next
};

}  // namespace kvilt::inline KVILT_ABI::detail
