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

namespace kvilt::inline KVILT_ABI {

/// The pages of an engine's sequences: who has which, in one or several groups, and what of a prompt is there already.
/// Knows ids, counts and tokens; the memory is the engine's, or a cache's.
///
/// A sequence is opened with a prompt and has at once those of its tokens that are cached. For the rest, and for each
/// step of decoding, the engine reserves room, runs, and appends the tokens that it has computed. Closed, its tokens stay
/// for other prompts until their pages are needed. Rows of a page that others have too, or that is named, are not
/// written: `reserve` takes a page for them and says which rows to copy.
///
/// Verbs that throw have changed nothing. Each takes as long as the pages that it hands out, takes back or finds, however
/// many there are. One thread at a time.
template <eviction_policy Eviction = aged_lfu, prefix_hash Hash = token_hash>
class page_manager {
 public:
  /// Throws `invalid_argument` for what cannot be.
  page_manager(const manager_shape& shape, Eviction eviction, Hash hash = Hash(), prefix_hook on_prefix = {})
      : page_tokens_(detail::checked(shape).page_tokens),
        by_page_(page_tokens_),
        cache_(shape.groups[0].pages, page_tokens_, std::move(eviction), hash, shape.groups[0].hook, on_prefix),
        sequences_(shape.sequences) {
    for (std::size_t g = 1; g < shape.groups.size(); ++g)
      others_.emplace_back(shape.groups[g], page_tokens_, shape.groups[0].pages);
  }
  explicit page_manager(const manager_shape& shape, Hash hash = Hash())
      : page_manager(shape, Eviction(detail::checked(shape).groups[0].pages), hash) {}

  int page_tokens() const { return page_tokens_; }
  int groups() const { return 1 + int(others_.size()); }
  const page_cache<Eviction, Hash>& cache() const { return cache_; }
  Eviction& eviction() { return cache_.eviction(); }

  // What a scheduler asks, each in as much time as there are groups.
  idx free_sequences() const { return sequences_.free(); }
  /// Pages that can be taken, those that are cached included.
  idx free_pages(int group) const { return group == 0 ? cache_.available() : other(group).pages().available(); }
  /// Tokens that the pages hold that can be taken in every group.
  idx free_tokens() const { return detail::least_available(others_, cache_.available()) * page_tokens_; }
  /// Pages that are missing for a sequence of `tokens` of which none is cached, in the group that is shortest of them;
  /// 0: it can be admitted.
  idx missing_pages(idx tokens) const {
    idx missing = larger(ceil_div(tokens, page_tokens_) - cache_.available(), 0);
    for (const auto& o : others_) missing = larger(missing, o.pages().needed().most(0, tokens) - o.pages().available());
    return missing;
  }
  bool can_admit(idx tokens) const { return free_sequences() > 0 && missing_pages(tokens) == 0; }
  /// The sequence that was opened last among those of the lowest priority: the first to be preempted. Throws
  /// `invalid_argument` when none is open.
  sequence last_opened() const { return sequences_.last_opened(); }
  manager_counters counters() const {
    manager_counters c = counts_;
    c.prefixes = cache_.statistics();
    c.open_sequences = sequences_.open();
    c.tokens += c.appended;
    const idx empty = held_pages_ * page_tokens_ - c.tokens;  // in every group: windows give back what is full
    c.groups.push_back({cache_.pool().counts(), held_pages_, empty});
    for (const auto& o : others_) c.groups.push_back({o.pages().pool().counts(), o.held_pages(), empty});
    return c;
  }

  // Of one sequence.
  idx length(sequence s) const { return sequences_.find(s).length; }
  /// Tokens that may be appended without a further `reserve`.
  idx room(sequence s) const { return sequences_.find(s).room - length(s); }
  /// The page table: a page for each `page_tokens()` tokens, -1 where a window has left them behind.
  std::span<const page_id> pages(sequence s, int group = 0) const {
    sequences_.find(s);
    return group == 0 ? std::span(tables_[std::size_t(s.slot)].pages) : other(group).table_of(s.slot);
  }

  /// Opens a sequence with as much of `prompt` as is cached; appends moves. Throws `out_of_pages` when all sequences are
  /// open.
  opened_sequence open(std::span<const token_id> prompt, std::vector<page_move>& moves,
                       const prompt_options& options = {}) {
    detail::check(options);
    sequences_.check_free();
    const sequence s = new_sequence(options.priority);
    table& q = tables_[std::size_t(s.slot)];
    const idx asked = larger(idx(prompt.size()) - options.computed, 0);
    prefix_hit hit = cache_.find(cache_.open_root(options.keys), prompt.first(std::size_t(asked)), q.pages);
    const idx lost = cut_to_all_groups(hit, q.pages);
    q.end = hit.end;
    q.stored = hit.pages;
    cache_.hold(q.pages, true);
    held_pages_ += hit.pages;
    for (auto& o : others_) o.hold_prefix(s.slot, q.pages);
    const int copied = hit.tail.rows > 0 ? copy_tail(s.slot, hit.tail, moves) : 0;
    const idx length = hit.pages * page_tokens_ + copied;
    sequences_[s.slot] = filling(length, idx(q.pages.size()) * page_tokens_);
    for (auto& o : others_) o.pass(s.slot, length, work_);
    counts_.tokens += length;
    ++counts_.opened;
    cache_.count(hit, idx(prompt.size()), copied, lost);
    return {s, length};
  }
  /// Makes room for `tokens` more, in pages of its own, and appends moves. Throws `out_of_pages`.
  void reserve(sequence s, idx tokens, std::vector<page_move>& moves) {
    detail::expects<out_of_pages>(try_reserve(s, tokens, moves), "sequence ", s.slot, " reserves ", tokens,
                                  " tokens; there are pages for ", free_tokens());
  }
  /// The same, false instead of `out_of_pages`.
  [[nodiscard]] bool try_reserve(sequence s, idx tokens, std::vector<page_move>& moves) {
    const filling& f = sequences_.find(s);
    detail::expects(tokens >= 0 && tokens <= longest - f.length, "sequence ", s.slot, " of ", f.length,
                    " tokens reserves ", tokens);
    return f.length + tokens <= f.room || grow(s.slot, tokens, moves);
  }
  /// Tokens whose rows are computed, or will be before any work that is launched afterwards. Room is reserved.
  void append(sequence s, std::span<const token_id> tokens) {
    filling& f = sequences_.find(s);
    const idx added = idx(tokens.size());
    detail::expects(added <= f.room - f.length, "sequence ", s.slot, " of ", f.length, " tokens appends ", added,
                    "; room is reserved for ", f.room - f.length);
    const std::vector<page_id>& pages = tables_[std::size_t(s.slot)].pages;
    for (idx at = f.length, end = at + added; at < end;) {
      const idx place = by_page_.quotient(at), row = at - place * page_tokens_,
                n = smaller(page_tokens_ - row, end - at);
      cache_.write_tokens(pages[std::size_t(place)], row, tokens.data() + (at - f.length), n);
      at += n;
    }
    f = filling(f.length + added, f.room);
    counts_.appended += added;
    for (auto& o : others_) o.pass(s.slot, f.length, work_);
  }
  void append(sequence s, token_id token) { append(s, {&token, 1}); }
  /// A token of each of these sequences, as a step of decoding has it; each is named once.
  void append(std::span<const sequence> each, std::span<const token_id> tokens) {
    detail::expects(each.size() == tokens.size(), each.size(), " sequences append ", tokens.size(), " tokens");
    for (const sequence s : each) {
      filling& f = sequences_.find(s);
      if (f.length == f.edge) turn_page(s.slot);
    }
    constexpr std::size_t ahead = 16;  // NOTE: every token goes to another line, which the first level seldom has
    for (std::size_t i = 0; i < each.size(); ++i) {
      if (i + ahead < each.size()) cache_.prefetch_tokens(sequences_[each[i + ahead].slot].next);
      filling& f = sequences_[each[i].slot];
      cache_.tokens(0)[f.next] = tokens[i];
      f.advance(1);
      for (auto& o : others_) o.pass(each[i].slot, f.length, work_);
    }
    counts_.appended += idx(each.size());
  }

  /// Forgets the tokens from `length` on, and gives their pages back with what was reserved. Throws `invalid_argument`
  /// where a window would show again what it has left behind.
  void truncate(sequence s, idx length) {
    filling& f = sequences_.find(s);
    table& q = tables_[std::size_t(s.slot)];
    detail::expects(length >= 0 && length <= f.length, "sequence ", s.slot, " of ", f.length,
                    " tokens is truncated to ", length);
    const idx kept = ceil_div(length, page_tokens_), full = length / page_tokens_;
    for (const auto& o : others_)
      detail::expects(o.shows(s.slot, length), "sequence ", s.slot, " is truncated to ", length,
                      "; a window would show what it has left behind");
    for (auto& o : others_) o.cut(s.slot, length, work_);
    const idx given = idx(q.pages.size()) - kept;
    cache_.give(std::span(q.pages).subspan(std::size_t(kept)), q.priority, work_, kept);
    q.pages.resize(std::size_t(kept));
    held_pages_ -= given;
    counts_.tokens -= f.length - length;
    if (full < q.stored) {
      q.stored = full;
      q.end = cache_.end_at(full > 0 ? q.pages[std::size_t(full - 1)] : -1, q.end);
    }
    f = filling(length, length);
  }

  /// A sequence with the same tokens, in the same pages. Its parent is stored first, see there: full pages that two
  /// sequences hold have a name. Throws `out_of_pages` when all sequences are open.
  sequence fork(sequence s) {
    sequences_.find(s);
    sequences_.check_free();
    store(s);
    const sequence child = new_sequence(tables_[std::size_t(s.slot)].priority);
    const table& parent = tables_[std::size_t(s.slot)];
    table& q = tables_[std::size_t(child.slot)];
    const idx length = this->length(s), filled = ceil_div(length, page_tokens_);
    q.pages.assign(parent.pages.begin(), parent.pages.begin() + filled);
    q.end = parent.end;
    q.stored = parent.stored;
    sequences_[child.slot] = filling(length, length);
    // NOTE: the page that is partly filled belongs to both now; who writes next reserves, and gets one of its own.
    if (length % page_tokens_ != 0) sequences_[s.slot] = filling(length, length);
    cache_.share_root(q.end);
    cache_.hold(q.pages, false);
    held_pages_ += filled;
    for (auto& o : others_) o.share(s.slot, child.slot, filled);
    counts_.tokens += length;
    ++counts_.forked;
    return child;
  }

  /// Names the full pages of a sequence, so that prompts find them while it is open. What another sequence has stored
  /// already is held in place of its own pages: returns how many entries of its page tables are other ones now.
  idx store(sequence s) {
    const idx full = length(s) / page_tokens_;
    table& q = tables_[std::size_t(s.slot)];
    const idx first = q.stored;
    idx replaced =
        cache_.store(q.end, std::span(q.pages).subspan(std::size_t(first), std::size_t(full - first)), work_);
    for (auto& o : others_)
      for (idx i = first; i < full; ++i) replaced += o.attach(s.slot, i, q.pages[std::size_t(i)], work_);
    q.stored = full;
    counts_.replaced += replaced;
    return replaced;
  }

  /// Ends a sequence; what it has is stored for others.
  void close(sequence s) {
    store_and_end(s);
    ++counts_.closed;
  }
  /// Ends a sequence, in whatever state; what it has not stored is gone.
  void discard(sequence s) {
    end(s);
    ++counts_.discarded;
  }
  /// Closes a sequence that is to go on later, by `open` with all its tokens. Before that `save(group, pages)` may copy
  /// what is in them, for each group.
  template <class Save>
  void preempt(sequence s, Save&& save) {
    for (int g = 0; g < groups(); ++g) save(g, pages(s, g));
    store_and_end(s);
    ++counts_.preempted;
  }

  /// Work up to `now` may touch the pages that are given back from here on.
  void launched(completion now) {
    detail::expects(now >= work_, "work up to ", now, " is launched; before it was up to ", work_);
    work_ = now;
  }
  /// All work up to `done` is complete.
  void complete(completion done) {
    cache_.complete(done);
    for (auto& o : others_) o.complete(done);
  }

 private:
  using filling = detail::filling;
  using table = detail::named_table;
  static constexpr idx longest = idx(1) << 31;

  const detail::attached_group& other(int group) const {
    detail::expects(group > 0 && group < groups(), "group ", group, "; there are 0 to ", groups() - 1);
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
    const bool room = free_tokens() > 0 && make_room(1);
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
  void turn_page(int slot) {
    filling& f = sequences_[slot];
    detail::expects(f.length < f.room, "sequence ", slot, " of ", f.length,
                    " tokens appends 1; room is reserved for 0");
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

  // What follows on the last full page, for a text that goes on like it; others may still be writing into it.
  void store_tail(sequence s) {
    const table& q = tables_[std::size_t(s.slot)];
    const int rows = int(length(s) % page_tokens_);
    if (rows == 0 || shared(q, q.stored)) return;
    const page_id p = q.pages[std::size_t(q.stored)];
    if (!cache_.store_tail(q.end, p, rows)) return;
    for (auto& o : others_) o.attach(s.slot, q.stored, p, work_);
  }
  void store_and_end(sequence s) {
    store(s);
    store_tail(s);
    end(s);
  }
  void end(sequence s) {
    counts_.tokens -= length(s);
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
  idx held_pages_ = 0;         // in all tables
  manager_counters counts_;    // NOTE: `tokens` but for those that were appended
};

}  // namespace kvilt::inline KVILT_ABI
