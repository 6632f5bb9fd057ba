#pragma once

#include <kvilt/pages/attached_group.hpp>
#include <kvilt/pages/manager_counters.hpp>
#include <kvilt/pages/manager_shape.hpp>
#include <kvilt/pages/page_cache.hpp>
#include <kvilt/pages/sequence_pages.hpp>
#include <kvilt/pages/sequence_slots.hpp>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace kvilt::inline KVILT_ABI::detail {

/// What a `page_manager` knows, and what its verbs have in common. Sequences are named by their slots; that they are open
/// is seen to before.
template <eviction_policy Eviction, prefix_hash Hash>
class managed_pages {
 protected:
  managed_pages(const manager_shape& shape, Eviction eviction, Hash hash, prefix_hook on_prefix)
      : page_tokens_(checked(shape).page_tokens),
        by_page_(page_tokens_),
        cache_(shape.groups[0].pages, page_tokens_, std::move(eviction), hash, shape.groups[0].hook, on_prefix),
        sequences_(shape.sequences) {
    for (std::size_t g = 1; g < shape.groups.size(); ++g)
      others_.emplace_back(shape.groups[g], page_tokens_, shape.groups[0].pages);
  }

  using table = named_table;
  static constexpr idx longest = idx(1) << 31;

  int groups() const { return 1 + int(others_.size()); }
  const attached_group& other(int group) const {
    expects(group > 0 && group < groups(), "group ", group, "; there are 0 to ", groups() - 1);
    return others_[std::size_t(group - 1)];
  }
  sequence new_sequence(int priority) {
    const sequence s = sequences_.open(priority, [&] {
      tables_.emplace_back();
      for (auto& o : others_) o.add_slot();
    });
    tables_[std::size_t(s.slot)].pages.clear();
    tables_[std::size_t(s.slot)].priority = priority;
    return s;
  }

  // A prefix ends where one of the groups lacks what is needed to go on. Returns how many pages are of no use.
  idx cut_to_all_groups(prefix_hit& hit, std::vector<page_id>& pages) const {
    const idx usable = detail::usable(others_, pages), lost = hit.pages - usable;
    if (lost == 0) return 0;
    pages.resize(std::size_t(usable));
    hit = {cache_.end_at(usable > 0 ? pages.back() : -1, hit.end), usable, {}};
    return lost;
  }

  // A page that begins with rows of another one, where there is one to take in every group. Returns how many rows.
  int copy_tail(int slot, const prefix_tail& tail, std::vector<page_move>& moves) {
    for (const auto& o : others_)
      if (o.pages().at(tail.page) < 0) return 0;
    // NOTE: held, so that it is not the page that is evicted for the copy.
    cache_.hold({&tail.page, 1}, true);
    for (auto& o : others_) o.hold(o.pages().at(tail.page));
    const table& q = tables_[std::size_t(slot)];
    const idx place = idx(q.pages.size());
    const bool room = least_available(others_, cache_.available()) > 0 && make_room(1);
    if (room) {
      extend(slot, 1);
      std::copy_n(cache_.tokens(tail.page), tail.rows, cache_.tokens(q.pages.back()));
      moves.push_back({0, tail.page, q.pages.back(), tail.rows});
      for (int g = 1; g < groups(); ++g)
        moves.push_back({g, other(g).pages().at(tail.page), other(g).table_of(slot).back(), tail.rows});
      counts_.moves += groups();
    }
    for (auto& o : others_) o.release(o.pages().at(tail.page), work_);
    cache_.give({&tail.page, 1}, q.priority, work_, place);
    return room ? tail.rows : 0;
  }

  // Pages for `tokens` more in every group, the page that is partly filled among them where it is not the sequence's
  // own; or none.
  bool grow(int slot, idx tokens, std::vector<page_move>& moves) {
    const table& q = tables_[std::size_t(slot)];
    const idx length = sequences_[slot].length, place = by_page_.quotient(length);
    const idx fresh = larger(by_page_.quotient(length + tokens + page_tokens_ - 1) - idx(q.pages.size()), 0);
    const int rows = int(length - place * page_tokens_);
    for (const auto& o : others_)
      if (fresh + (rows > 0 && o.shared(slot, place)) > o.pages().available()) return false;
    if (!make_room(fresh + (rows > 0 && shared(q, place)))) return false;
    extend(slot, fresh);
    // NOTE: last, so that nothing is evicted that is to be copied.
    if (rows > 0) own(slot, place, rows, moves);
    sequences_[slot] = filling(length, idx(q.pages.size()) * page_tokens_);
    return true;
  }
  bool shared(const table& q, idx place) const {
    const page_id p = q.pages[std::size_t(place)];
    return cache_.pool().holders(p) > 1 || cache_.pool().named(p);
  }
  void own(int slot, idx place, int rows, std::vector<page_move>& moves) {
    table& q = tables_[std::size_t(slot)];
    const std::size_t before = moves.size();
    if (shared(q, place)) {
      page_id& p = q.pages[std::size_t(place)];
      page_move move{0, p, -1, rows};
      cache_.take({&move.to, 1});
      std::copy_n(cache_.tokens(p), rows, cache_.tokens(move.to));
      cache_.give({&p, 1}, q.priority, work_, place);
      p = move.to;
      moves.push_back(move);
    }
    for (int g = 1; g < groups(); ++g) others_[std::size_t(g - 1)].own(slot, place, rows, g, work_, moves);
    counts_.moves += idx(moves.size() - before);
  }
  // Each of a step's sequences is named once, and has room for a token. NOTE: nothing is written before all are seen.
  void check_step(std::span<const sequence> each) {
    if (++step_ == 0) {
      sequences_.each([](filling& f) { f.step = 0; });
      step_ = 1;
    }
    for (const sequence s : each) {
      filling& f = sequences_.find(s);
      if (f.length == f.edge) turn_page(s.slot);
      expects(f.step != step_, "sequence ", s.slot, " is named twice in a step");
      f.step = step_;
    }
  }
  void turn_page(int slot) {
    filling& f = sequences_[slot];
    expects(f.length < f.room, "sequence ", slot, " of ", f.length, " tokens appends 1; room is reserved for 0");
    const idx place = by_page_.quotient(f.length);
    const page_id page = tables_[std::size_t(slot)].pages[std::size_t(place)];
    f.next = idx(page) * page_tokens_ + f.length - place * page_tokens_;
    f.edge = std::uint32_t(smaller((place + 1) * page_tokens_, f.room));
  }
  // NOTE: `make_room` comes before, so that nothing here fails.
  void extend(int slot, idx fresh) {
    if (fresh == 0) return;
    std::vector<page_id>& pages = tables_[std::size_t(slot)].pages;
    pages.resize(pages.size() + std::size_t(fresh));
    cache_.take(std::span(pages).last(std::size_t(fresh)));
    held_pages_ += fresh;
    if (fresh == 1)
      cache_.prefetch_tokens(idx(pages.back()) * page_tokens_);  // of the next token, when the step is done
    for (auto& o : others_) o.extend(slot, fresh);
  }
  // NOTE: what loses its name here cannot be found in the other groups either.
  bool make_room(idx pages) {
    return cache_.make_room(pages, [&](page_id lost) {
      for (auto& o : others_) o.detach(lost);
    });
  }

  // Names the full pages before `full`. Returns how many entries of page tables are other ones now.
  idx store(int slot, idx full) {
    table& q = tables_[std::size_t(slot)];
    const idx first = q.stored;
    if (full <= first) return 0;
    idx replaced =
        cache_.store(q.end, std::span(q.pages).subspan(std::size_t(first), std::size_t(full - first)), work_);
    for (auto& o : others_)
      for (idx i = first; i < full; ++i) replaced += o.attach(slot, i, q.pages[std::size_t(i)], work_);
    q.stored = full;
    counts_.replaced += replaced;
    return replaced;
  }
  // What no query from here on sees is given back. NOTE: with a name, for prompts that go on from further left.
  void pass(int slot) {
    const idx length = sequences_[slot].length;
    idx left = 0;
    for (const auto& o : others_) left = larger(left, o.leaves(slot, length));
    if (left == 0) [[likely]]
      return;
    store(slot, left);
    for (auto& o : others_) o.pass(slot, length, work_);
  }

  // What follows on the last full page, for a text that goes on like it; others may still be writing into it.
  void store_tail(sequence s) {
    const table& q = tables_[std::size_t(s.slot)];
    const int rows = int(sequences_[s.slot].length % page_tokens_);
    if (rows == 0 || shared(q, q.stored)) return;
    const page_id p = q.pages[std::size_t(q.stored)];
    if (!cache_.store_tail(q.end, p, rows)) return;
    for (auto& o : others_) o.attach(s.slot, q.stored, p, work_);
  }
  void finish(sequence s) {
    counts_.tokens -= sequences_[s.slot].length;
    const table& q = tables_[std::size_t(s.slot)];
    for (auto& o : others_) o.cut(s.slot, 0, work_);
    cache_.give(q.pages, q.priority, work_);
    cache_.close_root(q.end);
    held_pages_ -= idx(q.pages.size());
    sequences_.close(s.slot);
  }

  int page_tokens_;
  fast_divisor by_page_;
  page_cache<Eviction, Hash> cache_;
  std::vector<detail::attached_group> others_;
  detail::sequence_slots<filling> sequences_;
  std::vector<table> tables_;  // of each slot
  completion work_ = 0;        // launched
  std::uint32_t step_ = 0;     // the number of the last one
  idx held_pages_ = 0;         // in all tables
  manager_counters counts_;    // NOTE: `tokens` but for those that were appended
};

}  // namespace kvilt::inline KVILT_ABI::detail
