#pragma once

#include <kvilt/core/shared_spin_lock.hpp>
#include <kvilt/pages/many_threads.hpp>
#include <kvilt/pages/page_manager.hpp>

#include <mutex>
#include <shared_mutex>
#include <span>
#include <utility>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// A `page_manager` for several threads: verbs of different sequences may run at the same time, and so may the
/// scheduler's questions, pins and counters. A sequence is used by one thread at a time, as a container is; another may
/// go on with it where the engine hands it over. What verbs do and throw is said there; what is different:
///
/// - Rows of a move are copied, or their copying is queued, before the next verb of the sequence whose verb reported it.
///   Until that sequence takes or gives back pages, or `copied` says so, the page that they are copied from stays used,
///   and whoever else has it takes a copy too: n beams that go on in one page take n + 1, where `page_manager` takes n.
/// - Other threads' verbs come between any two: what a question said may be true no longer when the answer is used, so
///   whoever admits by it still uses `try_reserve`. `last_opened` may name a sequence that belongs to another thread.
/// - `launched` is called in the order of its points of work, whoever calls it. A point is of all threads' work: what any
///   of them gives back from then on waits for it.
/// - Hooks are called by whichever thread's verb it is, one at a time, and do not call the manager.
///
/// Appending into room, `length`, `room`, `pages`, `try_reserve` where there is room and `store` where nothing is full
/// take no lock. A prompt is hashed and compared while others do the same, and what is stored is hashed under no lock;
/// what changes who holds a page is done by one thread at a time. 4 bytes a page and 56 a sequence more than a
/// `page_manager`, for all sequences from the beginning. `Mutex`: as `std::shared_mutex` is.
template <eviction_policy Eviction = aged_lfu, prefix_hash Hash = token_hash, class Mutex = shared_spin_lock>
class concurrent_page_manager : page_manager<detail::stamped<Eviction>, Hash, detail::many_threads> {
  using base = page_manager<detail::stamped<Eviction>, Hash, detail::many_threads>;
  using reading = std::shared_lock<Mutex>;
  using writing = std::unique_lock<Mutex>;

 public:
  /// Throws `invalid_argument` for what cannot be.
  concurrent_page_manager(const manager_shape& shape, Eviction eviction, Hash hash = Hash(), prefix_hook on_prefix = {})
      : base(shape, detail::stamped<Eviction>(std::move(eviction)), hash, on_prefix),
        sources_(std::size_t(shape.sequences)) {
    sequences_.make_all([&] { add_slot(); });
  }
  explicit concurrent_page_manager(const manager_shape& shape, Hash hash = Hash())
      : concurrent_page_manager(shape, Eviction(detail::checked(shape).groups[0].pages), hash) {}
  concurrent_page_manager(const concurrent_page_manager&) = delete;
  concurrent_page_manager& operator=(const concurrent_page_manager&) = delete;

  using base::groups, base::page_tokens;

  idx free_sequences() const {
    return asked([&] { return base::free_sequences(); });
  }
  idx free_pages(int group) const {
    return asked([&] { return base::free_pages(group); });
  }
  idx free_tokens() const {
    return asked([&] { return base::free_tokens(); });
  }
  idx missing_pages(idx tokens) const {
    return asked([&] { return base::missing_pages(tokens); });
  }
  bool can_admit(idx tokens) const {
    return asked([&] { return base::can_admit(tokens); });
  }
  sequence last_opened() const {
    return asked([&] { return base::last_opened(); });
  }
  /// One moment's, but for tokens that others append meanwhile.
  manager_counters counters() const {
    const reading lock(mutex_);
    manager_counters c = base::counters();
    const idx appended = appended_.sum();
    c.appended += appended;
    c.tokens += appended;
    for (group_counters& g : c.groups) g.empty_rows -= appended;
    return c;
  }
  /// Calls `visit(policy)` while no verb does: to tell it the time, say.
  template <class Visit>
  decltype(auto) with_eviction(Visit&& visit) {
    const writing lock(mutex_);
    return visit(base::eviction().policy());
  }

  using base::length, base::pages, base::room;

  opened_sequence open(std::span<const token_id> prompt, std::vector<page_move>& moves,
                       const prompt_options& options = {}) {
    detail::check(options);
    const auto asked = prompt.first(std::size_t(larger(idx(prompt.size()) - options.computed, 0)));
    const sighting seen = look_up(asked, options.keys);
    const writing lock(mutex_);
    sequences_.check_free();
    const sequence s = new_sequence(options.priority, options.asked);
    const std::size_t before = moves.size();
    prefix_hit hit = find(seen, asked, options.keys, tables_[std::size_t(s.slot)].pages);
    const opened_sequence o = begin(s, hit, idx(prompt.size()), moves, options.asked);
    keep_sources(s.slot, std::span(moves).subspan(before));
    return o;
  }
  void reserve(sequence s, idx tokens, std::vector<page_move>& moves) {
    if (!try_reserve(s, tokens, moves)) [[unlikely]]
      detail::expects<out_of_pages>(false, "sequence ", s.slot, " reserves ", tokens, " tokens; there are pages for ",
                                    free_tokens());
  }
  [[nodiscard]] bool try_reserve(sequence s, idx tokens, std::vector<page_move>& moves) {
    if (has_room(s, tokens)) return true;
    const writing lock(mutex_);
    return grown(s.slot, tokens, moves);
  }
  /// Of all that have no room under one lock.
  [[nodiscard]] idx try_reserve(std::span<const sequence> each, idx tokens, std::vector<page_move>& moves) {
    return grow_each(
        each, tokens, [&] { return writing(mutex_); }, [&](int slot) { return grown(slot, tokens, moves); });
  }
  void append(sequence s, std::span<const token_id> tokens) {
    write(s, tokens);
    appended_.add(s.slot, idx(tokens.size()));
    pass(s.slot);
  }
  void append(sequence s, token_id token) { append(s, {&token, 1}); }
  void append(std::span<const sequence> each, std::span<const token_id> tokens) {
    write_step(each, tokens);
    if (each.empty()) return;
    appended_.add(each[0].slot, idx(each.size()));
    if (groups() > 1)
      for (const sequence s : each) pass(s.slot);
  }

  void truncate(sequence s, idx tokens) {
    sequences_.find(s);
    const writing lock(mutex_);
    release_sources(s.slot);
    base::truncate(s, tokens);
  }
  /// The rows of all moves that verbs of this sequence have reported are copied, or their copying is queued.
  void copied(sequence s) {
    sequences_.find(s);
    if (sources_[std::size_t(s.slot)].empty()) return;
    const writing lock(mutex_);
    release_sources(s.slot);
  }
  sequence fork(sequence s) {
    idx replaced = 0;
    asked([&] { return sequences_.find(s), sequences_.check_free(), 0; });
    writing lock = store(s.slot, length(s) / page_tokens(), replaced);
    if (!lock.owns_lock()) lock.lock();
    return base::fork(s);
  }
  idx store(sequence s) {
    idx replaced = 0;
    store(s.slot, length(s) / page_tokens(), replaced);
    return replaced;
  }
  void close(sequence s) {
    const writing lock = store_all(s);
    base::end(s);
    ++counts_.closed;
  }
  void discard(sequence s) {
    sequences_.find(s);
    const writing lock(mutex_);
    release_sources(s.slot);
    base::discard(s);
  }
  /// `save` is called under no lock.
  template <class Save>
  void preempt(sequence s, Save&& save) {
    for (int g = 0; g < groups(); ++g) save(g, pages(s, g));
    const writing lock = store_all(s);
    base::end(s);
    ++counts_.preempted;
  }

  pinned_prefix pin(std::span<const token_id> prompt, std::span<const std::uint64_t> keys = {}) {
    const sighting seen = look_up(prompt, keys);
    std::vector<page_id> found;
    const writing lock(mutex_);
    const prefix_hit hit = find(seen, prompt, keys, found);
    return pin_found(hit, std::move(found));
  }
  void unpin(pinned_prefix& kept, int priority = 0) {
    const writing lock(mutex_);
    base::unpin(kept, priority);
  }

  void launched(completion now) {
    const writing lock(mutex_);
    base::launched(now);
  }
  void complete(completion done) {
    const writing lock(mutex_);
    base::complete(done);
  }

 private:
  using base::add_slot, base::attach, base::begin, base::grow, base::grow_each, base::has_room, base::leave_behind,
      base::left_behind, base::new_sequence, base::pin_found, base::unnamed, base::write, base::write_step;
  using base::cache_, base::counts_, base::others_, base::sequences_, base::tables_, base::work_;
  using index_type = prefix_index<Hash>;

  // What the index had of a prompt at some time, in names that it had given by then.
  struct sighting {
    std::vector<page_id> pages;
    std::uint64_t at = 0;
  };
  // A page that rows are copied from, as it is held for that.
  struct source {
    int group;
    page_id page;
    idx place;
  };
  static constexpr idx few = 4;  // pages, which take less long than a lock more

  template <class Ask>
  auto asked(Ask&& ask) const {
    const reading lock(mutex_);
    return ask();
  }

  // The long part of finding, beside others who look for something.
  sighting look_up(std::span<const token_id> tokens, std::span<const std::uint64_t> keys) {
    sighting s;
    if (idx(tokens.size()) < few * page_tokens()) return s;
    s.pages.reserve(tokens.size() / std::size_t(page_tokens()));
    const reading lock(mutex_);
    s.at = base::eviction().now();
    prefix_end end = cache_.index().find_root(keys);
    if (end.root >= 0) cache_.index().find(end, tokens, [&](page_id p) { s.pages.push_back(p); });
    return s;
  }
  // The rest of it: what is still there of what was seen need not be compared again, for no page loses its name before
  // all that go on from it; what others have stored since is found too.
  prefix_hit find(const sighting& seen, std::span<const token_id> tokens, std::span<const std::uint64_t> keys,
                  std::vector<page_id>& found) {
    std::size_t n = seen.pages.size();
    const auto lost = [&](page_id p) { return !cache_.pool().named(p) || base::eviction().named_since(p, seen.at); };
    while (n > 0 && lost(seen.pages[n - 1])) --n;
    found.assign(seen.pages.begin(), seen.pages.begin() + idx(n));
    const prefix_end root = cache_.open_root(keys);
    prefix_hit hit = cache_.find(cache_.end_at(n > 0 ? found.back() : -1, root),
                                 tokens.subspan(n * std::size_t(page_tokens())), found);
    hit.pages += idx(n);
    return hit;
  }

  // Names the full pages before `full`, some at a time, so that others need not wait for all. Returns under the lock.
  writing store(int slot, idx full, idx& replaced) {
    writing lock(mutex_, std::defer_lock);
    detail::named_table& q = tables_[std::size_t(slot)];
    typename index_type::batch_names names;
    while (q.stored < full) {
      const idx next = smaller(q.stored + index_type::batch, full);
      const auto some = unnamed(slot, next);
      cache_.index().name(q.end, some, names);  // NOTE: of pages that nobody else holds
      lock.lock();
      replaced += attach(slot, next, cache_.store(q.end, some, names, work_));
      if (next < full) lock.unlock();
    }
    return lock;
  }
  writing store_all(sequence s) {
    idx replaced = 0;
    writing lock = store(s.slot, length(s) / page_tokens(), replaced);
    if (!lock.owns_lock()) lock.lock();
    release_sources(s.slot);
    return lock;
  }
  void pass(int slot) {
    const idx left = left_behind(slot);
    if (left == 0) [[likely]]
      return;
    idx replaced = 0;
    writing lock = store(slot, left, replaced);
    if (!lock.owns_lock()) lock.lock();
    leave_behind(slot);
  }

  bool grown(int slot, idx tokens, std::vector<page_move>& moves) {
    // NOTE: a sequence that is named twice has got room, and its rows are not copied yet.
    if (sequences_[slot].length + tokens <= sequences_[slot].room) return true;
    release_sources(slot);
    const std::size_t before = moves.size();
    const bool done = grow(slot, tokens, moves);
    keep_sources(slot, std::span(moves).subspan(before));
    return done;
  }
  // NOTE: another thread may take pages between a verb and the copying that it asks for. The sequence holds what is before
  // these pages in their prefix, as whoever holds a page does.
  void keep_sources(int slot, std::span<const page_move> moves) {
    const idx place = sequences_[slot].length / page_tokens();
    for (const page_move& m : moves) {
      if (m.group == 0)
        cache_.hold({&m.from, 1}, false);
      else
        others_[std::size_t(m.group - 1)].hold(m.from);
      sources_[std::size_t(slot)].push_back({m.group, m.from, place});
    }
  }
  void release_sources(int slot) {
    std::vector<source>& all = sources_[std::size_t(slot)];
    for (const source& s : all)
      if (s.group == 0)
        cache_.give({&s.page, 1}, tables_[std::size_t(slot)].priority, work_, s.place);
      else
        others_[std::size_t(s.group - 1)].release(s.page, work_);
    all.clear();
  }

  std::vector<std::vector<source>> sources_;  // of each slot
  detail::sharded_count appended_;
  mutable Mutex mutex_;
};

}  // namespace kvilt::inline KVILT_ABI
