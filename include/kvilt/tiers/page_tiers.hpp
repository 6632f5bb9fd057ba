#pragma once

#include <kvilt/pages/lru.hpp>
#include <kvilt/pages/page_manager.hpp>
#include <kvilt/tiers/prefetch.hpp>
#include <kvilt/tiers/tier_stack.hpp>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// Where the pages of a `page_manager` go when they leave its pool, and come back from: tiers, the nearest first, each a
/// `transfer` with an eviction policy of its own. What the manager evicts is stored in the first tier before its page is
/// handed out again, pages that one sequence takes at once as one batch: a `try_reserve` of several is one for each. What a tier has no room for goes to the next. A prefetch looks on
/// in the tiers where the pool has no more of a prompt, and brings what follows back, into pages of a sequence of its
/// own; when it has arrived the prompt's `open` finds it in the pool as if it had never left. Every page is compared
/// token by token, under its extra keys, with all before it, and checked; what is damaged is dropped and counted. When a
/// transfer fails the page is lost, and the request goes on without it.
///
/// The manager is made of the same shape, of one group, whose hook is `on_page()`, and gets `on_prefix()` and the same
/// hash in its constructor. Tiers are added before the first page is stored. Transfers outlive this, and this outlives the
/// manager's verbs. One thread at a time, the manager's.
template <prefix_hash Hash = token_hash>
class page_tiers {
 public:
  /// Throws `invalid_argument` for a shape that no manager has, or of several groups.
  explicit page_tiers(const manager_shape& shape, Hash hash = Hash())
      : page_tokens_(detail::checked(shape).page_tokens),
        hash_(hash),
        stack_(page_tokens_),
        node_of_(std::size_t(shape.groups[0].pages), -1) {
    detail::expects(shape.groups.size() == 1, "tiers for a manager of ", shape.groups.size(),
                    " groups; 1 is supported");
  }
  page_tiers(const page_tiers&) = delete;
  page_tiers& operator=(const page_tiers&) = delete;

  /// One tier more, behind those that there are; at most 4.
  template <eviction_policy Eviction = lru>
  void add(transfer& moves, const tier_options& options = {}) {
    stack_.add(moves, options, Eviction(moves.slots()), page_tokens_);
  }
  template <eviction_policy Eviction>
  void add(transfer& moves, const tier_options& options, Eviction eviction) {
    stack_.add(moves, options, std::move(eviction), page_tokens_);
  }

  prefix_hook on_prefix() {
    return {this, [](void* self, const prefix_event& e) { static_cast<page_tiers*>(self)->hear(e); }};
  }
  page_hook on_page() {
    return {this, [](void* self, page_id, page_event e) { static_cast<page_tiers*>(self)->hear(e); }};
  }

  int tiers() const { return int(stack_.levels().size()); }
  tier_counters counters(int tier) const {
    detail::expects(tier >= 0 && tier < tiers(), "tier ", tier, "; there are ", tiers());
    return stack_.levels()[std::size_t(tier)].counters();
  }
  const prefetch_counters& prefetches() const { return counts_; }
  /// Prefixes that are known, in the pool or in tiers.
  idx prefixes() const { return stack_.directory().count(); }

  /// How many tokens of a prompt the pool and the tiers have together, and of these the pool.
  struct found {
    idx tokens = 0, in_pool = 0;
  };
  found find(std::span<const token_id> prompt, const prompt_options& options = {}) {
    const std::vector<int> chain = chain_of(prompt, options);
    const idx pooled = in_pool(chain);
    return {reachable(chain, pooled) * page_tokens_, pooled * page_tokens_};
  }

  /// Begins to bring what the tiers have of a prompt behind what the pool has. The pages are taken at once, as many as
  /// there are; they are held, by a sequence of the manager's, until `release`. A prefetch that finds nothing is over:
  /// its name is that of none (`slot` -1). Never throws for want of room.
  template <eviction_policy Eviction>
  prefetch begin(page_manager<Eviction, Hash>& manager, std::span<const token_id> prompt,
                 const prompt_options& options = {}) {
    check(manager);
    const std::vector<int> chain = chain_of(prompt, options);
    const idx pooled = in_pool(chain);
    idx pages = reachable(chain, pooled) - pooled;
    if (pages == 0) return {};
    if (manager.free_sequences() == 0) return counts_.no_room += pages, prefetch{};
    const opened_sequence held = open_at(manager, prompt.first(std::size_t(pooled * page_tokens_)), options);
    if (held.tokens != pooled * page_tokens_) manager.close(held.name);
    detail::expects(held.tokens == pooled * page_tokens_, "the manager has ", held.tokens,
                    " tokens of a prompt; the tiers heard of ", pooled * page_tokens_,
                    ": `on_prefix()` is to be its hook, and its hash the tiers' own");
    const std::span<const int> wanted = std::span(chain).subspan(std::size_t(pooled), std::size_t(pages));
    for (const int n : wanted) stack_.pin(n);
    const prefetch name = jobs_.open();
    job& j = jobs_[name];
    for (const int n : wanted) {
      const int l = stack_.nearest(n), slot = slot_of(n, l);
      j.pages.push_back({n, l, slot, copy_result::failed});
      level(l).read(slot, true);
    }
    j.sequence = held.name;
    std::vector<page_move> none;
    while (pages > 0 && !manager.try_reserve(j.sequence, pages * page_tokens_, none))
      pages = smaller(pages - 1, manager.free_tokens() / page_tokens_);
    counts_.no_room += idx(wanted.size()) - pages;
    counts_.pages += pages;
    ++counts_.asked;
    for (; idx(j.pages.size()) > pages; j.pages.pop_back()) {
      level(j.pages.back().level).end_read(j.pages.back().slot);
      stack_.unpin(j.pages.back().node);
    }
    start(manager, j);
    poll(manager);
    return name;
  }

  /// Sees what has ended: prefetched pages get their names, and what was stored is there to be found. Call it once a
  /// step, say.
  template <eviction_policy Eviction>
  void poll(page_manager<Eviction, Hash>& manager) {
    check(manager);
    store_leaving();
    stack_.settle();
    for (job& j : jobs_.all())
      if (j.open && !j.landed && arrived(j)) land(manager, j);
  }
  /// Whether all has arrived that will.
  bool done(const prefetch& p) const { return p.slot < 0 || jobs_[p].landed; }

  /// Ends a prefetch. What has arrived stays cached, for as long as its pages are not needed: so the prompt is opened
  /// before. One that is under way is cancelled: its pages are given back when the last copy has ended.
  template <eviction_policy Eviction>
  void release(page_manager<Eviction, Hash>& manager, prefetch& p) {
    check(manager);
    if (p.slot < 0) return;
    job& j = jobs_[p];
    if (j.landed) {
      end(manager, j);
    } else {
      detail::expects(!j.cancelled, "a prefetch is cancelled twice");
      j.cancelled = true;
      ++counts_.cancelled;
    }
    p = {};
  }

  /// Preempts a sequence, `page_manager::preempt`, and keeps its partly filled page in the first tier: the others go there
  /// when their pages are needed. Where that has no slot nothing is kept, and the last tokens are computed again.
  template <eviction_policy Eviction>
  parked_sequence preempt(page_manager<Eviction, Hash>& manager, sequence s) {
    check(manager);
    parked_sequence parked;
    parked.text_ = manager.text(s);
    parked.keys_.assign(manager.keys(s).begin(), manager.keys(s).end());
    parked.by_ = this;
    const idx length = idx(parked.text_.size()), full = length / page_tokens_;
    if (length % page_tokens_ > 0 && (parked.slot_ = stack_.take_apart()) >= 0) {
      detail::tier_level& first = level(0);
      parked.tag_ = first.tag_of(parked.slot_);
      const page_copy copy{parked.slot_, manager.pages(s)[std::size_t(full)], nullptr, parked.tag_};
      if (stack_.finish(first.moves(), copy_way::store, copy) == copy_result::done) {
        first.filled_apart(parked.slot_);
        ++first.counts().stored;
      } else {
        first.empty(std::exchange(parked.slot_, -1));
        ++first.counts().failed_stores;
      }
    }
    manager.preempt(s, [](int, std::span<const page_id>) {});
    return parked;
  }
  /// Opens a preempted sequence again, with as much of its text as there is: what the pool has, after a prefetch all of
  /// its full pages, and then the rows that were kept. Where a full page is missing, or a page for the rows, these are
  /// still kept, for who closes what was opened and comes again; else they are nobody's from here on. Appends moves, as
  /// `page_manager::open` does. Throws `invalid_argument` for other keys than the sequence had, and for a text that does
  /// not begin with its own.
  template <eviction_policy Eviction>
  opened_sequence resume(page_manager<Eviction, Hash>& manager, parked_sequence& parked, std::span<const token_id> text,
                         std::vector<page_move>& moves, prompt_options options = {}) {
    check(manager);
    check(parked);
    const idx length = idx(parked.text_.size()), full = length / page_tokens_ * page_tokens_;
    const idx same = std::ranges::mismatch(parked.text_, text).in1 - parked.text_.begin();
    detail::expects(same == length, "a sequence of ", length, " tokens is resumed with a text of ", text.size(),
                    ", which goes on otherwise behind ", same);
    const idx known = std::ranges::mismatch(parked.keys_, options.keys).in1 - parked.keys_.begin();
    detail::expects(std::ranges::equal(parked.keys_, options.keys), "a sequence under ", parked.keys_.size(),
                    " extra keys is resumed under ", options.keys.size(), ", of which the first ", known,
                    " are the same");
    options.computed = 0;
    opened_sequence o = manager.open(text, moves, options);
    if (parked.slot_ < 0 || o.tokens < full) return o;
    std::vector<page_move> none;
    if (o.tokens < length) {
      if (!manager.try_reserve(o.name, length - o.tokens, none)) return o;
      // NOTE: over rows that are to be copied from another page, if there are any: they are these.
      detail::tier_level& first = level(0);
      const page_id page = manager.pages(o.name)[std::size_t(full / page_tokens_)];
      const copy_result r = stack_.finish(first.moves(), copy_way::load, {parked.slot_, page, nullptr, parked.tag_});
      stack_.count_load(0, r);
      if (r == copy_result::done) {
        manager.append(o.name, text.subspan(std::size_t(o.tokens), std::size_t(length - o.tokens)));
        o.tokens = length;
      }
    }
    forget(parked);
    return o;
  }
  /// The sequence does not go on.
  void forget(parked_sequence& parked) {
    check(parked);
    if (parked.slot_ >= 0) level(0).release(parked.slot_);
    parked = {};
  }

 private:
  using job = detail::prefetch_job;

  template <eviction_policy Eviction>
  void check(const page_manager<Eviction, Hash>& manager) const {
    detail::expects(manager.groups() == 1 && manager.page_tokens() == page_tokens_ &&
                        manager.cache().pool().total() <= idx(node_of_.size()),
                    "tiers for pages of ", page_tokens_, " tokens, ", node_of_.size(),
                    " of them in one group; the manager has ", manager.cache().pool().total(), " of ",
                    manager.page_tokens(), " in ", manager.groups());
    const idx taken = manager.cache().pool().total() - manager.cache().pool().free();
    detail::expects(tiers() == 0 || taken_ == taken, "the manager's pages that are not free are ", taken,
                    "; the tiers heard of ", taken_, ": `on_page()` is to be its group's hook");
  }
  void check(const parked_sequence& parked) const {
    if (parked.slot_ < 0) return;
    const bool kept = parked.by_ == this && parked.slot_ < stack_.levels()[0].moves().slots() &&
                      stack_.levels()[0].keeps(parked.slot_, parked.tag_);
    detail::expects(kept, "slot ", parked.slot_, " (its tag ", parked.tag_,
                    ") of the first tier has no rows of a sequence that was parked there");
  }
  detail::tier_level& level(int n) { return stack_.levels()[std::size_t(n)]; }
  int slot_of(int node, int level) const { return stack_.directory()[node].slots[std::size_t(level)]; }

  // The pool's pages are handed out and come back.
  void hear(page_event e) {
    taken_ += e == page_event::taken ? 1 : -1;
    if (e == page_event::taken) store_leaving();
  }
  // They get names and lose them.
  void hear(const prefix_event& e) {
    int& node = node_of_[std::size_t(e.page)];
    if (e.what == prefix_event::kind::stored) {
      const int before = e.page_before >= 0 ? node_of_[std::size_t(e.page_before)] : -1;
      const auto enter = [&](int root) {
        const int known = stack_.directory().find(root, before, e.name, e.tokens);
        return known >= 0 ? known : stack_.directory().add(root, before, e.name, e.tokens);
      };
      node =
          before >= 0 ? enter(stack_.directory()[before].root) : stack_.directory().with_root(e.keys, e.before, enter);
      stack_.directory()[node].page = e.page;
      stack_.pooled(node);
      return;
    }
    const int gone = std::exchange(node, -1);
    stack_.directory()[gone].page = -1;
    stack_.pin(gone);
    leaving_.emplace_back(gone, e.page);
    for (int l = 0; l < tiers(); ++l)
      if (const int s = slot_of(gone, l); s >= 0) level(l).touch(s);
  }
  // NOTE: before the first page is handed out again, and written.
  void store_leaving() {
    if (leaving_.empty()) return;
    stack_.store(leaving_);
    leaving_.clear();
  }

  // The nodes of a prompt's full pages, from the first on, as far as the directory has them.
  std::vector<int> chain_of(std::span<const token_id> prompt, const prompt_options& options) {
    detail::check(options);
    const idx pages = larger(idx(prompt.size()) - options.computed, 0) / page_tokens_;
    std::uint64_t name = hash_.root(options.keys);
    return stack_.directory().with_root(options.keys, name, [&](int root) {
      std::vector<int> chain;
      for (idx i = 0; i < pages; ++i) {
        const auto tokens = prompt.subspan(std::size_t(i * page_tokens_), std::size_t(page_tokens_));
        name = hash_.page(name, tokens.data(), page_tokens_);
        const int n = stack_.directory().find(root, chain.empty() ? -1 : chain.back(), name, tokens);
        if (n < 0) break;
        chain.push_back(n);
      }
      return chain;
    });
  }
  idx in_pool(const std::vector<int>& chain) const {
    idx n = 0;
    while (n < idx(chain.size()) && stack_.directory()[chain[std::size_t(n)]].page >= 0) ++n;
    return n;
  }
  idx reachable(const std::vector<int>& chain, idx from) const {
    while (from < idx(chain.size()) && stack_.nearest(chain[std::size_t(from)]) >= 0) ++from;
    return from;
  }

  // A sequence that holds the pool's pages of a prompt, and nothing of another page.
  template <eviction_policy Eviction>
  static opened_sequence open_at(page_manager<Eviction, Hash>& manager, std::span<const token_id> prompt,
                                 prompt_options options) {
    options.computed = 0;
    options.asked = false;
    std::vector<page_move> none;
    return manager.open(prompt, none, options);
  }

  // A batch for each tier.
  template <eviction_policy Eviction>
  void start(page_manager<Eviction, Hash>& manager, job& j) {
    const std::span<const page_id> pages = manager.pages(j.sequence).last(j.pages.size());
    for (int l = 0; l < tiers(); ++l) {
      std::vector<page_copy> batch;
      job::part part{0, l, {}};
      for (std::size_t i = 0; i < pages.size(); ++i) {
        if (j.pages[i].level != l) continue;
        batch.push_back({j.pages[i].slot, pages[i], nullptr, level(l).tag_of(j.pages[i].slot)});
        part.of.push_back(i);
      }
      if (batch.empty()) continue;
      part.ticket = level(l).moves().start(copy_way::load, batch);
      j.parts.push_back(std::move(part));
    }
  }
  bool arrived(job& j) {
    std::erase_if(j.parts, [&](const job::part& p) {
      std::vector<copy_result> results(p.of.size());
      if (!level(p.level).moves().done(p.ticket, results)) return false;
      for (std::size_t i = 0; i < results.size(); ++i) {
        j.pages[p.of[i]].result = results[i];
        stack_.count_load(p.level, results[i]);
      }
      return true;
    });
    return j.parts.empty();
  }
  // All copies of a prefetch have ended: what follows on a page that was not copied is of no use.
  template <eviction_policy Eviction>
  void land(page_manager<Eviction, Hash>& manager, job& j) {
    j.landed = true;
    {
      // NOTE: whatever the manager says of a sequence that somebody else may have ended.
      struct at_end {
        page_tiers& tiers;
        job& j;
        ~at_end() { tiers.let_go(j); }
      } const letting_go{*this, j};
      if (!j.cancelled) serve(manager, j);
    }
    if (j.cancelled) end(manager, j);
  }
  template <eviction_policy Eviction>
  void serve(page_manager<Eviction, Hash>& manager, job& j) {
    for (const job::page& p : j.pages) {
      if (p.result != copy_result::done) break;
      manager.append(j.sequence, stack_.directory().tokens(p.node));
      ++counts_.arrived;
    }
    manager.store(j.sequence);
    manager.truncate(j.sequence, manager.length(j.sequence));  // pages for what has not come
  }
  // Its slots may go to others, and its nodes.
  void let_go(job& j) {
    for (const job::page& p : j.pages) {
      level(p.level).end_read(p.slot);
      const bool good = p.result == copy_result::done;
      const bool here = stack_.directory()[p.node].page >= 0;
      // NOTE: it may be in another slot by now.
      if (slot_of(p.node, p.level) == p.slot && (!good || (here && !level(p.level).options().keeps_loaded)))
        stack_.drop(p.level, p.node);
    }
    for (std::size_t i = j.pages.size(); i-- > 0;) stack_.unpin(j.pages[i].node);
  }
  // NOTE: over whatever the manager says.
  template <eviction_policy Eviction>
  void end(page_manager<Eviction, Hash>& manager, job& j) {
    j.open = false;
    if (j.cancelled)
      manager.discard(j.sequence);
    else
      manager.close(j.sequence);
  }

  int page_tokens_;
  Hash hash_;
  detail::tier_stack stack_;
  std::vector<int> node_of_;                      // [pages of the pool]
  std::vector<std::pair<int, page_id>> leaving_;  // evicted, and not yet handed out again
  idx taken_ = 0;                                 // pages of the pool that are not free
  detail::prefetch_jobs jobs_;
  prefetch_counters counts_;
};

}  // namespace kvilt::inline KVILT_ABI
