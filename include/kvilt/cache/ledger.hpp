#pragma once

#include <kvilt/cache/device_step.hpp>
#include <kvilt/cache/handles.hpp>
#include <kvilt/cache/row_ledger.hpp>
#include <kvilt/cache/step.hpp>

#include <type_traits>
#include <utility>
#include <vector>

namespace kvilt::inline KVILT_ABI {

template <memory_space Space, class... Policies>
class basic_cache_set;

namespace detail {

/// What an owner knows of its sequences in ids and counts: who is open, how long, with room for what, on which pages.
/// Bytes are the cache's affair. Sequences may have pages in common. A step writes behind the rows that the body has of a
/// sequence, and the pages there are its own: a fork gets its own at once. Only a truncation goes back into a page that
/// others have, so that the next `reserve` takes another one.
template <class Policy, memory_space Space>
class ledger : public row_ledger<Policy, Space> {
  using held = row_ledger<Policy, Space>;

 public:
  using step_type = std::conditional_t<Space == memory_space::device, device_step, step>;
  const budget& bytes() const { return plan_.bytes; }
  const cache_shape& shape() const { return shape_; }
  /// The most tokens that a sequence may have at one time; a ring has no end.
  idx max_length() const { return plan_.window_slots ? no_end : plan_.max_length; }

  int free_sequences() const { return handles_.free(); }
  /// Pages that no sequence has, those that prompts may find included; without tables, those of sequences not open.
  idx free_pages() const { return tabled ? pages_.free() : plan_.body.pages / shape_.sequences * free_sequences(); }
  /// Tokens that the free pages hold; by head, in all layers and heads. A ring is never short of room for more: without
  /// end, whoever has its pages.
  idx free_tokens() const {
    if (plan_.window_slots) return moved_from() ? 0 : no_end;
    return tabled ? pages_.free() / held::tables() * plan_.page_rows : plan_.max_length * free_sequences();
  }

  /// A new, empty sequence. Throws `out_of_pages` when all are open.
  sequence open() {
    const sequence s = handles_.open();
    entry& e = of(s) = {};  // NOTE: nvcc 13 gives the first member what is meant for a later one
    e.body = Policy::tail ? Policy::sinks : 0;
    return s;
  }

  void close(sequence s) {
    const int row = find(s).row;
    check_idle("close");
    held::clear(row);
    handles_.close(s);
  }

  /// Committed tokens, those among them that were evicted.
  idx length(sequence s) const { return of(s).length; }
  /// Those that `keep` has left, as many in every layer and KV head; by head, the most of any.
  idx kept(sequence s) const { return held::most_live(find(s).row); }
  /// Those of one layer's KV head.
  idx kept(sequence s, int layer, int head) const { return held::live(table_of(s, layer, head)); }
  /// Its number in the views' tables, `step_item::sequence`; until the next reorder.
  int row(sequence s) const { return find(s).row; }

  /// What the sequence holds between steps, or may hold with `more` tokens that `copy_rows` brings.
  lengths holds(sequence s, idx more = 0) const {
    const entry& e = of(s);
    expects(more >= 0 && more < no_end - e.length, "sequence ", s.slot, " of ", e.length, " tokens is to hold ", more,
            " more; 0 or a positive number, and fewer than 2^62 in all, are needed");
    return holding<Policy>(e.length + more, more == 0 ? e.body : -1);
  }

  /// Commits what `copy_rows` has brought to every layer under the lengths `n`: those of `holds`, or of a cache of the
  /// same policy. Room must be reserved. Behind a 16-bit tail an empty sequence alone takes copies.
  void adopt(sequence s, const lengths& n) {
    check_adopt(s, n);
    hold(s, n);
  }

  /// Pages that `reserve` would take. Throws `invalid_argument` as it does.
  idx missing_pages(sequence s, idx tokens) const {
    const entry& e = of(s);
    expects(tokens >= 0, "sequence ", s.slot, " reserves ", tokens, " tokens");
    if (plan_.window_slots) return 0;
    const int row = find(s).row;
    const idx live = held::most_live(row);
    expects(tokens <= plan_.max_length - live, "sequence ", s.slot, " has ", live, " tokens and reserves ", tokens,
            " more; the longest may have ", plan_.max_length);
    if constexpr (held::evicts)
      expects(tokens < (idx(1) << 31) - e.length, "sequence ", s.slot, " has had ", e.length, " tokens and reserves ",
              tokens, " more; positions below 2^31 are supported");
    idx pages = 0;
    held::each_table(row, [&](int t) {
      pages += larger(held::pages_for(held::live(t) + tokens) - held::filled(t), 0);
      pages += tokens > 0 && held::goes_on_in_shared(t);
    });
    return pages;
  }

  /// Forgets the tokens from `length` on and gives their pages back; where the sequence is to go on in a page that others
  /// have too, room for that is to be reserved again. Throws where what a window would show again is gone.
  void truncate(sequence s, idx length) {
    check_truncate(s, length);
    entry& e = of(s);
    e.length = length;
    if constexpr (Policy::tail > 0) e.body = larger(smaller(e.body, length), Policy::sinks);
    if (length <= Policy::sinks) e.written = length, e.lost = 0;
    pages_.cut_text(find(s).row, length);
    held::give_spare_pages(find(s).row);
  }

  /// Ends the step: lengths grow by `accepted[i]` tokens each, or by all. Every layer must have appended what is
  /// accepted.
  void commit(const step_type& s, std::span<const int> accepted = {}) {
    check_commit(s, accepted);
    for (std::size_t i = 0; i < begun_.size(); ++i)
      grow(begun_[i].item, accepted.empty() ? begun_[i].item.new_tokens : accepted[i]);
    idle_ = true;
  }

  /// Ends the step begun last, if there is one, as if it had not been: for a forward pass that failed, at any layer.
  void cancel() { idle_ = true; }

 protected:
  using held::policy_, held::shape_, held::plan_, held::pages_;
  using held::tabled, held::slides, held::evicts;
  template <memory_space, class...>
  friend class kvilt::basic_cache_set;
  friend struct persistence;

  ledger(const Policy& policy, const arrangement<Policy>& plan, const cache_shape& shape, memory<Space> from)
      : held(policy, plan, shape, from), handles_(shape.sequences) {
    begun_.reserve(std::size_t(shape.sequences));
  }

  bool moved_from() const { return handles_.moved_from(); }
  const page_id* table() const { return pages_.data(); }

  void check_reserve(sequence s, idx tokens) const {
    const idx missing = missing_pages(s, tokens);
    expects<out_of_pages>(missing <= pages_.free(), "sequence ", s.slot, " needs ", missing, " more pages for ", tokens,
                          " tokens; ", pages_.free(), " of ", pages_.total(), " are free");
  }
  /// Makes room that `missing_pages` has found to be there.
  void take_room(sequence s, idx tokens) {
    if (plan_.window_slots) return;
    held::each_table(find(s).row, [&](int t) {
      if (tokens > 0 && held::goes_on_in_shared(t)) pages_.replace(t, held::kept_pages(t));
      const idx end = larger(held::pages_for(held::live(t) + tokens), held::filled(t));
      pages_.take(t, held::filled(t), end);
      held::filled(t) = end;
    });
  }

  void check_truncate(sequence s, idx length) const {
    const entry& e = of(s);
    check_idle("truncate");
    expects(length >= 0 && length <= e.length, "sequence ", s.slot, " is truncated to ", length, "; it has ", e.length,
            " tokens");
    if constexpr (slides) {
      const idx seen = larger(first_seen(length, policy_.retention.width()), Policy::sinks),
                oldest = held::oldest_of(e);
      expects(seen >= oldest || length <= Policy::sinks, "sequence ", s.slot, " is truncated to ", length,
              "; its window would show token ", seen, ", and those before ", oldest, " are gone");
    }
    expects(length >= e.body || length <= Policy::sinks || (length - Policy::sinks) % Policy::tile == 0, "sequence ",
            s.slot, " is truncated to ", length, ", inside a tile of ", Policy::tile);
  }

  /// The same of a body from which tokens were evicted before it was copied, for an empty sequence.
  void adopt_listed(sequence s, const lengths& n, listed_rows listed) {
    check_adopt(s, n, listed.evicted);
    held::lists()[find(s).row] = listed;
    hold(s, n);
  }
  void check_adopt(sequence s, const lengths& n, idx evicted = 0) const {
    check_idle("adopt");
    const entry& e = of(s);
    check_holding<Policy>(s.slot, n, shape_.max_step);
    expects(n.after >= e.length && n.after < no_end && (Policy::tail == 0 || e.length == 0), "sequence ", s.slot,
            " of ", e.length, " tokens is to hold ", n.after, " by copy; ",
            Policy::tail ? "behind a tail it must be empty" : "no fewer");
    check_room(s, n.after - e.length - evicted, n.body_after - Policy::exact_sinks - evicted);
  }
  void hold(sequence s, const lengths& n) {
    entry& e = of(s);
    e.length = n.after;
    if constexpr (Policy::tail > 0) e.body = n.body_after;
    e.written = larger(e.written, n.after);
    // NOTE: what the window does not show was not copied.
    if constexpr (slides) e.lost = larger(e.lost, first_seen(n.after, policy_.retention.width()));
    held::release_left_of_window(find(s).row);
  }

  void check_commit(const step_type& s, std::span<const int> accepted) const {
    expects(!idle_ && s.serial == serial_ && s.items == begun_at_ && !moved_from(), "step ", s.serial,
            " is committed; the one begun last is ", serial_, idle_ ? ", already ended" : "");
    expects(accepted.empty() || accepted.size() == begun_.size(), "a step of ", begun_.size(), " sequences has ",
            accepted.size(), " accepted counts; one of each or none is needed");
    for (std::size_t i = 0; i < accepted.size(); ++i)
      expects(accepted[i] >= 0 && accepted[i] <= begun_[i].item.new_tokens, "sequence ", begun_[i].slot, " accepts ",
              accepted[i], " of ", begun_[i].item.new_tokens, " tokens");
  }

  void check_batch(std::span<const sequence> sequences, std::span<const int> new_tokens, std::size_t positions) {
    check_idle("begin");
    expects(new_tokens.size() == sequences.size(), "a step of ", sequences.size(), " sequences has ", new_tokens.size(),
            " token counts; one of each is needed");
    ++checks_;
    idx tokens = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      check_begin(sequences[i], new_tokens[i]);
      tokens += new_tokens[i];
    }
    expects(positions == 0 || idx(positions) == tokens, "a step of ", tokens, " tokens has ", positions,
            " positions; one of each or none is needed");
  }

  /// Writes the items of a step that has been checked, and counts its rows; nothing has begun.
  void lay_out(step& s, step_item* items, std::span<const sequence> sequences, std::span<const int> new_tokens) const {
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const entry& e = of(sequences[i]);
      items[i] = next_item(s, find(sequences[i]).row, new_tokens[i], new_tokens[i],
                           grown<Policy>(e.length, e.body, new_tokens[i]));
    }
  }
  /// Begins it; the host can read `items`.
  template <class Step>
  void start(Step& s, const step_item* items, std::span<const sequence> sequences) {
    begun_.clear();
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      entry& e = held::at(items[i].sequence);
      e.written = larger(e.written, items[i].n.after);
      begun_.push_back({items[i], sequences[i].slot});
    }
    s.serial = ++serial_;
    begun_at_ = s.items;
    idle_ = false;
  }

  void check_fork(sequence s) const {
    const idx pages = alone_pages(pages_, find(s).row);
    check_idle("fork");
    handles_.check_free();
    expects<out_of_pages>(pages <= pages_.free(), "sequence ", s.slot, " has ", pages, " pages to be forked; ",
                          pages_.free(), " of ", pages_.total(), " are free");
  }
  /// Opens a fork that has been checked.
  sequence_copy fork_to(sequence s, sequence& child) {
    child = open();
    const sequence_copy copy{find(s).row, find(child).row, held::there(find(s).row)};
    held::inherit(copy);
    return copy;
  }

  new_order plan_reorder(std::span<const sequence> sequences, std::span<const int> parents) {
    check_idle("reorder");
    expects(parents.size() == sequences.size(), sequences.size(), " sequences are reordered by ", parents.size(),
            " parents; one of each is needed");
    ++checks_;
    std::vector<int> rows;
    for (std::size_t i = 0; i < parents.size(); ++i) {
      rows.push_back(find(sequences[i]).row);
      expects(std::exchange(find(sequences[i]).checked, checks_) != checks_, "sequence ", sequences[i].slot,
              " is reordered twice");
      expects(parents[i] >= 0 && std::size_t(parents[i]) < parents.size(), "sequence ", sequences[i].slot,
              " has parent ", parents[i], "; there are 0 to ", idx(parents.size()) - 1);
    }
    new_order order = order_of(rows, parents);
    typename text_table<Space>::emptying given(pages_);
    for (const sequence_copy& c : order.copies) held::each_table(c.to, [&](int t) { given.add(t, held::filled(t)); });
    idx missing = -given.freed();
    for (sequence_copy& c : order.copies) {
      c.n = held::there(c.from);
      missing += alone_pages(given, c.from);
    }
    expects<out_of_pages>(missing <= pages_.free(), "a reorder of ", sequences.size(), " sequences needs ", missing,
                          " more pages; ", pages_.free(), " of ", pages_.total(), " are free");
    return order;
  }
  void apply(new_order& order, std::span<const sequence> sequences) {
    for (const sequence_copy& c : order.copies) held::clear(c.to);
    for (const sequence_copy& c : order.copies) held::inherit(c);
    for (std::size_t i = 0; i < sequences.size(); ++i) find(sequences[i]).row = order.rows[i];
  }

  sequence_handles handles_;

  const handle& find(sequence s) const { return handles_.find(s); }
  handle& find(sequence s) { return handles_.find(s); }
  const entry& of(sequence s) const { return held::at(find(s).row); }
  entry& of(sequence s) { return held::at(find(s).row); }
  /// The table of one layer's head, which may be that of all.
  int table_of(sequence s, int layer, int head) const {
    const int first = held::first_table(find(s).row);
    expects(layer >= 0 && layer < shape_.layers && head >= 0 && head < shape_.kv_heads, "head ", head, " of layer ",
            layer, "; the cache has ", shape_.kv_heads, " KV heads in each of ", shape_.layers, " layers");
    return first + (held::by_head ? layer * shape_.kv_heads + head : 0);
  }
  void check_idle(const char* verb) const { expects(idle_, verb, ": step ", serial_, " is begun and not committed"); }

 private:
  void check_begin(sequence s, int tokens) {
    expects(std::exchange(find(s).checked, checks_) != checks_, "sequence ", s.slot, " is in the step twice");
    expects(tokens >= 0, "sequence ", s.slot, " appends ", tokens, " tokens");
    if constexpr (slides || Policy::tail > 0)
      expects(tokens <= shape_.max_step, "sequence ", s.slot, " appends ", tokens, " tokens in one step; max_step is ",
              shape_.max_step, ": see in_chunks");
    check_room(s, tokens, 0);
  }
  /// Pages that a copy of a row has for itself, by what `of` says that others have too.
  template <class Pages>
  idx alone_pages(const Pages& of, int row) const {
    idx pages = 0;
    held::each_table(row, [&](int t) { pages += of.own_pages(t, held::kept_pages(t), held::filled(t)); });
    return pages;
  }
  /// Room for `tokens` more, and for the first `in_body` rows of a body from which none has gone yet.
  void check_room(sequence s, idx tokens, idx in_body) const {
    const int row = find(s).row;
    if (!plan_.window_slots)
      held::each_table(row, [&](int t) {
        const idx before = held::live(t), after = before + tokens, gone = held::at(row).length - before;
        expects(after <= plan_.max_length &&
                    larger(held::pages_for(after), held::pages_of_rows(in_body - gone)) <= held::filled(t) &&
                    (tokens == 0 || !held::goes_on_in_shared(t)),
                "sequence ", s.slot, " has ", before, " tokens and appends ", tokens, "; that many are not reserved");
      });
  }

  void grow(const step_item& item, int accepted) {
    // NOTE: nothing accepted is as good as cancelled: what may not have left the tail in every layer leaves it again.
    if (accepted == 0) return;
    entry& e = held::at(item.sequence);
    e.length = item.n.before + accepted;
    if constexpr (Policy::tail > 0) e.body = item.n.body_after;
    if constexpr (Policy::tail > 0 && slides) {
      const idx hidden = smaller(first_seen(item.n.before, policy_.retention.width()), item.n.body_after);
      if (item.n.body_before < hidden) e.lost = larger(e.lost, hidden);
    }
    held::release_left_of_window(item.sequence);
  }

  std::uint64_t serial_ = 0;       // of the step begun last
  std::uint64_t checks_ = 0;       // calls that check a batch
  std::vector<begun_item> begun_;  // its items: the workspace is the caller's
  const step_item* begun_at_ = nullptr;
  bool idle_ = true;
};

}  // namespace detail
}  // namespace kvilt::inline KVILT_ABI
