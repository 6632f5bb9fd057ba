#pragma once

#include <kvilt/pages/managed_pages.hpp>
#include <kvilt/pages/one_thread.hpp>

#include <array>
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
/// many there are, over many verbs: who hands out pages also evicts as many, and passes over those of prefixes that were
/// cut, once for each time that one was given back. `complete` takes as long as the pages that waited; tables grow as
/// vectors do. One thread at a time; for several there is `concurrent_page_manager`. What was moved from refuses every
/// sequence. `Threads` is what that class is made with.
template <eviction_policy Eviction = aged_lfu, prefix_hash Hash = token_hash, class Threads = detail::one_thread>
class page_manager : protected detail::managed_pages<Eviction, Hash, Threads> {
  using base = detail::managed_pages<Eviction, Hash, Threads>;
  using filling = detail::filling;
  using table = detail::named_table;

 public:
  /// Throws `invalid_argument` for what cannot be.
  page_manager(const manager_shape& shape, Eviction eviction, Hash hash = Hash(), prefix_hook on_prefix = {})
      : base(shape, std::move(eviction), hash, on_prefix), on_left_(shape.on_left) {}
  explicit page_manager(const manager_shape& shape, Hash hash = Hash())
      : page_manager(shape, Eviction(detail::checked(shape).groups[0].pages), hash) {}

  page_manager(page_manager&&) = default;
  page_manager& operator=(page_manager&&) = default;
  ~page_manager() {
    const idx open = sequences_.open(), used = cache_.pool().used();
    if (on_left_.call && (open > 0 || used > 0)) on_left_.call(on_left_.self, open, used);
  }

  int page_tokens() const { return page_tokens_; }
  using base::groups;
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
  /// The sequence that was opened last among those of the lowest priority: the first to be preempted. One that was opened
  /// ahead of its prompt (`prompt_options::asked`), as a prefetch has it, is none. Throws `invalid_argument` when no other
  /// is open.
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
  /// Its tokens, and the extra keys that it was opened under, which are there until it ends.
  std::vector<token_id> text(sequence s) const {
    const idx length = this->length(s);
    std::vector<token_id> tokens;
    tokens.reserve(std::size_t(length));
    for (const page_id p : tables_[std::size_t(s.slot)].pages) {
      const token_id* const first = cache_.tokens(p);
      tokens.insert(tokens.end(), first, first + smaller(length - idx(tokens.size()), page_tokens_));
    }
    return tokens;
  }
  std::span<const std::uint64_t> keys(sequence s) const {
    sequences_.find(s);
    return cache_.keys(tables_[std::size_t(s.slot)].end);
  }

  /// Opens a sequence with as much of `prompt` as is cached; appends moves. Throws `out_of_pages` when all sequences are
  /// open.
  opened_sequence open(std::span<const token_id> prompt, std::vector<page_move>& moves,
                       const prompt_options& options = {}) {
    detail::check(options);
    sequences_.check_free();
    const sequence s = new_sequence(options.priority, options.asked);
    const auto asked = prompt.first(std::size_t(larger(idx(prompt.size()) - options.computed, 0)));
    prefix_hit hit = cache_.find(cache_.open_root(options.keys), asked, tables_[std::size_t(s.slot)].pages);
    return begin(s, hit, idx(prompt.size()), moves, options.asked);
  }
  /// Makes room for `tokens` more, in pages of its own, and appends moves. Throws `out_of_pages`.
  KVILT_ALWAYS_INLINE void reserve(sequence s, idx tokens, std::vector<page_move>& moves) {
    if (!try_reserve(s, tokens, moves)) [[unlikely]]
      detail::expects<out_of_pages>(false, "sequence ", s.slot, " reserves ", tokens, " tokens; there are pages for ",
                                    free_tokens());
  }
  /// The same, false instead of `out_of_pages`.
  [[nodiscard]] KVILT_ALWAYS_INLINE bool try_reserve(sequence s, idx tokens, std::vector<page_move>& moves) {
    return has_room(s, tokens) || grow(s.slot, tokens, moves);
  }
  /// The same for each of a step's sequences, one after another. Returns how many have room now, from the first on: for the
  /// next one there are no pages.
  [[nodiscard]] idx try_reserve(std::span<const sequence> each, idx tokens, std::vector<page_move>& moves) {
    return grow_each(
        each, tokens, [] { return 0; }, [&](int slot) { return grow(slot, tokens, moves); });
  }
  /// Tokens whose rows are computed, or will be before any work that is launched afterwards. Room is reserved. Pages that
  /// a window leaves behind are stored before: as by `store`, page tables may have others' pages in their place then.
  void append(sequence s, std::span<const token_id> tokens) {
    write(s, tokens);
    counts_.appended += idx(tokens.size());
    pass(s.slot);
  }
  void append(sequence s, token_id token) { append(s, {&token, 1}); }
  /// A token of each of these sequences, as a step of decoding has it. Throws `invalid_argument` where one is named twice
  /// or has no room.
  void append(std::span<const sequence> each, std::span<const token_id> tokens) {
    write_step(each, tokens);
    if (!others_.empty())
      for (const sequence s : each) pass(s.slot);
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
  /// sequences hold have a name. Where the last page is partly filled, it belongs to both, and neither has room: the parent
  /// keeps the pages that it has reserved behind it, and takes one more when it reserves again. Throws `out_of_pages` when
  /// all sequences are open.
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
    return base::store(s.slot, full);
  }

  /// Ends a sequence; what it has is stored for others.
  void close(sequence s) {
    store(s);
    end(s);
    ++counts_.closed;
  }
  /// Ends a sequence, in whatever state; what it has not stored is gone.
  void discard(sequence s) {
    sequences_.find(s);
    finish(s);
    ++counts_.discarded;
  }
  /// Closes a sequence that is to go on later, by `open` with all its tokens. Before that `save(group, pages)` may copy
  /// what is in them, for each group.
  template <class Save>
  void preempt(sequence s, Save&& save) {
    for (int g = 0; g < groups(); ++g) save(g, pages(s, g));
    store(s);
    end(s);
    ++counts_.preempted;
  }

  /// Keeps the full pages of a prompt that are cached or in use, though no sequence has them: as many as `open` would find
  /// in all groups, which the result says. Until `unpin`.
  pinned_prefix pin(std::span<const token_id> prompt, std::span<const std::uint64_t> keys = {}) {
    std::vector<page_id> pages;
    if (cache_.pool().total() == 0) return {};
    const prefix_hit hit = cache_.find(cache_.open_root(keys), prompt, pages);
    return pin_found(hit, std::move(pages));
  }
  /// Gives a prefix back that this manager pinned; it stays cached, as one that a sequence of `priority` has closed. What
  /// was given back already is empty.
  void unpin(pinned_prefix& kept, int priority = 0) {
    detail::check({{}, priority});
    unpin_pages(kept, priority);
  }

  /// Work up to `now` may touch the pages that are given back from here on. Throws `invalid_argument` for what is
  /// complete, or earlier than what was launched before.
  void launched(completion now) {
    const completion done = cache_.pool().completed();
    detail::expects(now > done, "work up to ", now, " is launched; up to ", done, " it is complete");
    detail::expects(now >= work_, "work up to ", now, " is launched; before it was up to ", work_);
    work_ = now;
  }
  /// All work up to `done` is complete.
  void complete(completion done) {
    cache_.complete(done);
    for (auto& o : others_) o.complete(done);
  }

 protected:
  using base::begin, base::grow, base::new_sequence, base::pass, base::pin_found, base::unpin_pages, base::write,
      base::write_step;
  using base::cache_, base::counts_, base::held_pages_, base::others_, base::page_tokens_, base::sequences_,
      base::tables_, base::work_;

  KVILT_ALWAYS_INLINE bool has_room(sequence s, idx tokens) const {
    const filling& f = sequences_.find(s);
    detail::expects(tokens >= 0 && tokens <= base::longest - f.length, "sequence ", s.slot, " of ", f.length,
                    " tokens reserves ", tokens);
    return f.length + tokens <= f.room;
  }
  // Calls `grown(slot)` for each that has no room, until it says no, in what `enter()` returns. NOTE: none is grown before
  // all are seen.
  template <class Enter, class Grown>
  idx grow_each(std::span<const sequence> each, idx tokens, Enter&& enter, Grown&& grown) {
    std::array<std::size_t, 128> without;
    std::size_t n = 0;
    for (std::size_t i = 0; i < each.size(); ++i)
      if (!has_room(each[i], tokens) && n++ < without.size()) without[n - 1] = i;
    if (n == 0) return idx(each.size());
    [[maybe_unused]] const auto inside = enter();
    for (std::size_t k = 0; k < n && k < without.size(); ++k)
      if (!grown(each[without[k]].slot)) return idx(without[k]);
    for (std::size_t i = n > without.size() ? without.back() + 1 : each.size(); i < each.size(); ++i)
      if (!has_room(each[i], tokens) && !grown(each[i].slot)) return idx(i);
    return idx(each.size());
  }
  // Ends a sequence whose full pages are stored.
  void end(sequence s) {
    base::store_tail(s);
    finish(s);
  }

 private:
  using base::finish, base::other;

  left_hook on_left_;
};

}  // namespace kvilt::inline KVILT_ABI
