#pragma once

#include <kvilt/pages/attached_group.hpp>
#include <kvilt/pages/manager_counters.hpp>
#include <kvilt/pages/manager_shape.hpp>
#include <kvilt/pages/page_cache.hpp>
#include <kvilt/pages/pinned_prefix.hpp>
#include <kvilt/pages/sequence_pages.hpp>
#include <kvilt/pages/sequence_slots.hpp>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace kvilt::inline KVILT_ABI::detail {

/// What a `page_manager` knows, and what its verbs have in common. Sequences are named by their slots; that they are open
/// is seen to before.
template <eviction_policy Eviction, prefix_hash Hash, class Threads>
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
  void add_slot() {
    tables_.emplace_back();
    for (auto& o : others_) o.add_slot();
  }
  sequence new_sequence(int priority, bool asked = true) {
    const sequence s = sequences_.open(asked ? priority : sequences_.nobodys, [&] { add_slot(); });
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
  int copy_tail(int slot, const prefix_tail& tail, std::vector<page_move>& moves, bool counts) {
    for (const auto& o : others_)
      if (o.pages().at(tail.page) < 0) return 0;
    // NOTE: held, so that it is not the page that is evicted for the copy.
    cache_.hold({&tail.page, 1}, counts);
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
  // A sequence that has what was found of its prompt; its table has the pages that were found.
  KVILT_ALWAYS_INLINE opened_sequence begin(sequence s, prefix_hit& hit, idx asked, std::vector<page_move>& moves,
                                            bool counts) {
    table& q = tables_[std::size_t(s.slot)];
    const idx lost = cut_to_all_groups(hit, q.pages);
    q.end = hit.end;
    q.stored = hit.pages;
    cache_.hold(q.pages, counts);
    held_pages_ += hit.pages;
    for (auto& o : others_) o.hold_prefix(s.slot, q.pages);
    const int copied = hit.tail.rows > 0 ? copy_tail(s.slot, hit.tail, moves, counts) : 0;
    const idx length = hit.pages * page_tokens_ + copied;
    sequences_[s.slot] = filling(length, idx(q.pages.size()) * page_tokens_);
    pass(s.slot);
    counts_.tokens += length;
    ++counts_.opened;
    if (counts) cache_.count(hit, asked, copied, lost);
    return {s, length};
  }
  // The same for one that no sequence has.
  pinned_prefix pin_found(prefix_hit hit, std::vector<page_id>&& named) {
    pinned_prefix kept;
    cut_to_all_groups(hit, named);
    kept.pages_.resize(std::size_t(groups()));
    kept.pages_[0] = std::move(named);
    kept.end_ = hit.end;
    kept.tokens_ = hit.pages * page_tokens_;
    cache_.hold(kept.pages_[0], false);
    for (int g = 1; g < groups(); ++g) others_[std::size_t(g - 1)].pin(kept.pages_[0], kept.pages_[std::size_t(g)]);
    return kept;
  }
  void unpin_pages(pinned_prefix& kept, int priority) {
    if (kept.pages_.empty()) return;
    for (int g = 1; g < groups(); ++g) others_[std::size_t(g - 1)].unpin(kept.pages_[std::size_t(g)], work_);
    cache_.give(kept.pages_[0], priority, work_);
    cache_.close_root(kept.end_);
    kept = {};
  }

  // Tokens that there is room for.
  void write(sequence s, std::span<const token_id> tokens) {
    filling& f = sequences_.find(s);
    const idx added = idx(tokens.size());
    expects(added <= f.room - f.length, "sequence ", s.slot, " of ", f.length, " tokens appends ", added,
            "; room is reserved for ", f.room - f.length);
    const std::vector<page_id>& pages = tables_[std::size_t(s.slot)].pages;
    for (idx at = f.length, end = at + added; at < end;) {
      const idx place = by_page_.quotient(at), row = at - place * page_tokens_,
                n = smaller(page_tokens_ - row, end - at);
      cache_.write_tokens(pages[std::size_t(place)], row, tokens.data() + (at - f.length), n);
      at += n;
    }
    f = filling(f.length + added, f.room);
  }
  // A token of each.
  void write_step(std::span<const sequence> each, std::span<const token_id> tokens) {
    expects(each.size() == tokens.size(), each.size(), " sequences append ", tokens.size(), " tokens");
    check_step(each);
    constexpr std::size_t ahead = 16;  // NOTE: every token goes to another line, which the first level seldom has
    for (std::size_t i = 0; i < each.size(); ++i) {
      if (i + ahead < each.size()) cache_.prefetch_tokens(sequences_[each[i + ahead].slot].next);
      filling& f = sequences_[each[i].slot];
      cache_.tokens(0)[f.next] = tokens[i];
      f.advance(1);
    }
  }
  // Each of a step's sequences is named once, and has room for a token. NOTE: nothing is written before all are seen.
  void check_step(std::span<const sequence> each) {
    for (std::size_t i = 0; i < each.size(); ++i) {
      const sequence s = each[i];
      filling& f = sequences_.find(s);
      if (f.length == f.edge) turn_page(s.slot);
      // NOTE: a seat is of this step where the sequence sits in it; what an earlier step left there says nothing.
      expects(f.seat >= i || each[f.seat].slot != s.slot, "sequence ", s.slot, " is named twice in a step");
      f.seat = std::uint32_t(i);
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
    held_pages_ += fresh;
    if (fresh == 1) {
      pages.push_back(cache_.take_free());
      cache_.prefetch_tokens(idx(pages.back()) * page_tokens_);  // of the next token, when the step is done
    } else {
      pages.resize(pages.size() + std::size_t(fresh));
      cache_.take(std::span(pages).last(std::size_t(fresh)));
    }
    for (auto& o : others_) o.extend(slot, fresh);
  }
  // NOTE: what loses its name here cannot be found in the other groups either.
  bool make_room(idx pages) {
    return cache_.make_room(pages, [&](page_id lost) {
      for (auto& o : others_) o.detach(lost);
    });
  }

  // Pages before `full` that have no name yet.
  std::span<page_id> unnamed(int slot, idx full) {
    table& q = tables_[std::size_t(slot)];
    return std::span(q.pages).subspan(std::size_t(q.stored), std::size_t(full - q.stored));
  }
  // Names the full pages before `full`. Returns how many entries of page tables are other ones now.
  idx store(int slot, idx full) {
    table& q = tables_[std::size_t(slot)];
    if (full <= q.stored) return 0;
    return attach(slot, full, cache_.store(q.end, unnamed(slot, full), work_));
  }
  // Of these as many have names now as are there before `full`; `replaced` are other ones.
  idx attach(int slot, idx full, idx replaced) {
    table& q = tables_[std::size_t(slot)];
    const idx first = q.stored;
    for (auto& o : others_)
      for (idx i = first; i < full; ++i) replaced += o.attach(slot, i, q.pages[std::size_t(i)], work_);
    q.stored = full;
    counts_.replaced += replaced;
    return replaced;
  }
  // What no query from here on sees is given back. NOTE: with a name, for prompts that go on from further left.
  void pass(int slot) {
    const idx left = left_behind(slot);
    if (left == 0) [[likely]]
      return;
    store(slot, left);
    leave_behind(slot);
  }
  // So many pages, the sinks among them, where there is one to give back; or 0.
  idx left_behind(int slot) const {
    const idx length = sequences_[slot].length;
    idx left = 0;
    for (const auto& o : others_) left = larger(left, o.leaves(slot, length));
    return left;
  }
  void leave_behind(int slot) {
    for (auto& o : others_) o.pass(slot, sequences_[slot].length, work_);
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
  std::vector<attached_group> others_;
  sequence_slots<filling, Threads> sequences_;
  std::vector<table> tables_;  // of each slot
  completion work_ = 0;        // launched
  idx held_pages_ = 0;         // in all tables
  manager_counters counts_;    // NOTE: `tokens` but for those that were appended
};

}  // namespace kvilt::inline KVILT_ABI::detail
