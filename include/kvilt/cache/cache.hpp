#pragma once

#include <kvilt/cache/budget.hpp>
#include <kvilt/cache/step.hpp>
#include <kvilt/core/memory.hpp>
#include <kvilt/pages/page_pool.hpp>

#include <algorithm>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// Owns K and V of a group of layers of one shape, the page tables and the sequences' lengths.
///
/// A sequence is opened, room is reserved ahead, and each forward pass is a step: `begin`, then `append` and attention
/// on the view of each layer, then `commit` of what was accepted, or `cancel`. A step and its workspace serve until then;
/// used later it would write over committed tokens. Nothing is written by a call that throws.
/// Not thread-safe; the views may be read from any thread between `begin` and `commit`.
template <class Policy, memory_space Space = memory_space::host>
class cache {
 public:
  using policy_type = Policy;
  using view_type = view_of<Space, Policy>;

  /// Allocates everything at once: `bytes().bytes()` bytes, no more ever. Throws `invalid_argument`.
  cache(const cache_shape& shape, memory<Space> from, const Policy& policy = {})
      : policy_(policy),
        shape_(shape),
        plan_(policy, shape),
        data_(from, std::size_t(plan_.bytes.kv_bytes)),
        table_(from, std::size_t(plan_.bytes.table_bytes)),
        pool_(tabled ? plan_.body.pages : 0),
        entries_(std::size_t(shape.sequences)) {
    begun_.reserve(entries_.size());
    static_assert(Space == memory_space::host, "kvilt: this header owns host memory");
    std::fill_n(table(), plan_.bytes.table_width * shape.sequences, page_id(-1));
    for (int s = shape.sequences; s-- > 0;) closed_.push_back(s);
  }

  const budget& bytes() const { return plan_.bytes; }
  const cache_shape& shape() const { return shape_; }
  /// The longest that a sequence may get; a ring has no end.
  idx max_length() const { return plan_.window_slots ? detail::no_end : plan_.max_length; }

  int free_sequences() const { return int(closed_.size()); }
  /// Pages that no sequence has; where pages come by arithmetic, those of the sequences not open.
  idx free_pages() const { return tabled ? pool_.free() : plan_.body.pages / shape_.sequences * free_sequences(); }
  /// Tokens that the free pages hold. A ring is never short of room for more: without end, whoever has its pages.
  idx free_tokens() const {
    if (plan_.window_slots) return entries_.empty() ? 0 : detail::no_end;
    return tabled ? pool_.free() * plan_.page_rows : plan_.max_length * free_sequences();
  }

  /// A new, empty sequence. Throws `out_of_pages` when all are open.
  sequence open() {
    detail::expects<out_of_pages>(!closed_.empty(), "all ", shape_.sequences, " sequences are open");
    const int slot = closed_.back();
    closed_.pop_back();
    entry& e = entries_[std::size_t(slot)];
    e = {.open = true, .generation = e.generation + 1, .body = Policy::tail ? Policy::sinks : 0};
    return {slot, e.generation};
  }

  void close(sequence s) {
    entry& e = find(s);
    check_idle("close");
    give_pages(s.slot, 0);
    e.open = false;
    closed_.push_back(s.slot);
  }

  /// Committed tokens.
  idx length(sequence s) const { return find(s).length; }

  /// Makes room for `tokens` more than are committed; what a window over pages reserves it holds, so a few steps at a
  /// time are enough for it. Throws `out_of_pages`, or `invalid_argument` beyond `max_length`.
  void reserve(sequence s, idx tokens) {
    const idx missing = missing_pages(s, tokens);
    detail::expects<out_of_pages>(missing <= pool_.free(), "sequence ", s.slot, " needs ", missing, " more pages for ",
                                  tokens, " tokens; ", pool_.free(), " of ", pool_.total(), " are free");
    take_pages(s, tokens);
  }

  /// The same, false instead of `out_of_pages`.
  [[nodiscard]] bool try_reserve(sequence s, idx tokens) {
    if (missing_pages(s, tokens) > pool_.free()) return false;
    take_pages(s, tokens);
    return true;
  }

  /// Forgets the tokens from `length` on and gives their pages back. Throws where what a window would show again is
  /// gone.
  void truncate(sequence s, idx length) {
    entry& e = find(s);
    check_idle("truncate");
    detail::expects(length >= 0 && length <= e.length, "sequence ", s.slot, " is truncated to ", length, "; it has ",
                    e.length, " tokens");
    check_window(s, length);
    detail::expects(length >= e.body || length <= Policy::sinks || (length - Policy::sinks) % Policy::tile == 0,
                    "sequence ", s.slot, " is truncated to ", length, ", inside a tile of ", Policy::tile);
    e.length = length;
    if constexpr (Policy::tail > 0) e.body = larger(smaller(e.body, length), Policy::sinks);
    if (length <= Policy::sinks) e.written = length, e.lost = 0;
    // NOTE: what has left the tail stays in the body, also where a sequence of this length would have it in its tail.
    const idx flushed = e.body > Policy::sinks ? e.body - Policy::exact_sinks : 0;
    give_pages(s.slot, larger(pages_for(length), pages_of_rows(flushed)));
  }

  /// What the verbs get of one layer.
  view_type view(int layer) const {
    detail::expects(layer >= 0 && layer < shape_.layers, "layer ", layer, "; the cache has layers 0 to ",
                    shape_.layers - 1);
    detail::expects(!entries_.empty(), "layer ", layer, " of a cache that has been moved from");
    unsigned char* base = data_.data() + layer * plan_.layer_bytes();
    using rule = typename Policy::retention_type;
    const typename Policy::body_segment body{
        bound(), interval<part::body, rule>(policy_.retention, Policy::sinks, {first_body_slot(), plan_.window_slots}),
        policy_.k, policy_.v, plan_.body.at(base)};
    unsigned char* exact = base + plan_.body.layer_bytes();
    if constexpr (Policy::sinks > 0 && Policy::tail > 0)
      return view_type(shape_.kv_heads, sinks(base, exact), body, tail(exact + plan_.sinks.layer_bytes()));
    else if constexpr (Policy::sinks > 0)
      return view_type(shape_.kv_heads, sinks(base, exact), body);
    else if constexpr (Policy::tail > 0)
      return view_type(shape_.kv_heads, body, tail(exact));
    else
      return view_type(shape_.kv_heads, body);
  }

  /// Bytes of workspace for steps of up to `sequences` sequences.
  std::size_t workspace_bytes(const host& exec, int sequences) const {
    return kvilt::workspace_bytes(exec, sequences, policy_.k.dim(), policy_.v.dim());
  }

  /// Plans a step in which sequence `sequences[i]` appends `new_tokens[i]` tokens (0 is legal). Room must be reserved.
  /// `rope_positions`: one of each new token, read while the step is in use, or empty for positions in the text.
  step begin(const host& exec, std::span<const sequence> sequences, std::span<const int> new_tokens,
             std::span<unsigned char> workspace, std::span<const idx> rope_positions = {}) {
    check_idle("begin");
    detail::expects(new_tokens.size() == sequences.size(), "a step of ", sequences.size(), " sequences has ",
                    new_tokens.size(), " token counts; one of each is needed");
    ++checks_;
    for (std::size_t i = 0; i < sequences.size(); ++i) check_begin(sequences[i], new_tokens[i]);
    step_item* items = nullptr;
    step s = detail::place_step(idx(sequences.size()), workspace, items);
    detail::check_scratch(exec, s, policy_.k.dim(), policy_.v.dim());
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const lengths n = grown(entries_[std::size_t(sequences[i].slot)], new_tokens[i]);
      items[i] = detail::next_item(s, sequences[i].slot, new_tokens[i], new_tokens[i], n);
    }
    detail::expects(rope_positions.empty() || idx(rope_positions.size()) == s.kv_rows, "a step of ", s.kv_rows,
                    " tokens has ", rope_positions.size(), " positions; one of each or none is needed");
    s.rope_positions = rope_positions.empty() ? nullptr : rope_positions.data();
    for (int i = 0; i < s.size; ++i) {
      entry& e = entries_[std::size_t(items[i].sequence)];
      e.written = larger(e.written, items[i].n.after);
    }
    s.serial = ++serial_;
    begun_at_ = s.items;
    begun_.assign(items, items + s.size);
    idle_ = false;
    return s;
  }

  /// Ends the step: lengths grow by `accepted[i]` tokens each, or by all. Every layer must have appended what is
  /// accepted.
  void commit(const step& s, std::span<const int> accepted = {}) {
    detail::expects(!idle_ && s.serial == serial_ && s.items == begun_at_ && !entries_.empty(), "step ", s.serial,
                    " is committed; the one begun last is ", serial_, idle_ ? ", already ended" : "");
    detail::expects(accepted.empty() || accepted.size() == begun_.size(), "a step of ", begun_.size(),
                    " sequences has ", accepted.size(), " accepted counts; one of each or none is needed");
    for (std::size_t i = 0; i < accepted.size(); ++i)
      detail::expects(accepted[i] >= 0 && accepted[i] <= begun_[i].new_tokens, "sequence ", begun_[i].sequence,
                      " accepts ", accepted[i], " of ", begun_[i].new_tokens, " tokens");
    for (std::size_t i = 0; i < begun_.size(); ++i)
      grow(begun_[i], accepted.empty() ? begun_[i].new_tokens : accepted[i]);
    idle_ = true;
  }

  /// Ends the step begun last, if there is one, as if it had not been: for a forward pass that failed, at any layer.
  void cancel() { idle_ = true; }

 private:
  static constexpr bool tabled = !fixed_layout<typename Policy::layout_type>;
  static constexpr bool slides = Policy::retention_type::slides;

  struct entry {
    bool open = false;
    std::uint32_t generation = 0;
    idx length = 0;
    idx body = 0;               // tokens below have left the 16-bit tail
    idx pages = 0;              // table entries in use or given back, from the first on
    idx pages_passed = 0;       // of these, those that a window has left
    idx written = 0;            // tokens ever written beyond which a ring holds nothing older
    idx lost = 0;               // tokens below may have left the tail when no window showed them, and are nowhere
    std::uint64_t checked = 0;  // the call of begin that has seen it last
  };

  page_id* table() const { return reinterpret_cast<page_id*>(table_.data()); }
  page_id* row(int slot) const { return table() + slot * plan_.bytes.table_width; }
  idx first_body_slot() const { return plan_.body_sinks; }

  const entry& find(sequence s) const {
    detail::expects(s.slot >= 0 && std::size_t(s.slot) < entries_.size(), "sequence ", s.slot, "; the cache has 0 to ",
                    idx(entries_.size()) - 1);
    const entry& e = entries_[std::size_t(s.slot)];
    detail::expects(e.open && e.generation == s.generation, "sequence ", s.slot, " (opened as its ", s.generation,
                    "th) is closed");
    return e;
  }
  entry& find(sequence s) { return const_cast<entry&>(std::as_const(*this).find(s)); }
  void check_idle(const char* verb) const {
    detail::expects(idle_, verb, ": step ", serial_, " is begun and not committed");
  }

  auto bound() const {
    if constexpr (tabled)
      return policy_.layout.bind(table(), plan_.bytes.table_width);
    else
      return policy_.layout.bind(plan_.request);
  }
  auto sinks(unsigned char* body, unsigned char* exact) const {
    const interval<part::sinks, typename Policy::retention_type> keep(policy_.retention, Policy::sinks);
    if constexpr (Policy::exact_sinks > 0)
      return typename Policy::sinks_segment{
          {Policy::sinks}, keep, policy_.k_exact(), policy_.v_exact(), plan_.sinks.at(exact)};
    else
      return typename Policy::sinks_segment{bound(), keep, policy_.k, policy_.v, plan_.body.at(body)};
  }
  auto tail(unsigned char* exact) const {
    const interval<part::tail, typename Policy::retention_type> keep(policy_.retention, Policy::sinks,
                                                                     {0, plan_.tail_slots});
    return typename Policy::tail_segment{
        {plan_.tail_slots}, keep, policy_.k_exact(), policy_.v_exact(), plan_.tail.at(exact)};
  }

  void grow(const step_item& item, int accepted) {
    // NOTE: nothing accepted is as good as cancelled: what may not have left the tail in every layer leaves it again.
    if (accepted == 0) return;
    entry& e = entries_[std::size_t(item.sequence)];
    e.length = item.n.before + accepted;
    if constexpr (Policy::tail > 0) e.body = item.n.body_after;
    if constexpr (Policy::tail > 0 && slides) {
      const idx hidden = smaller(first_seen(item.n.before, policy_.retention.width()), item.n.body_after);
      if (item.n.body_before < hidden) e.lost = larger(e.lost, hidden);
    }
    release_left_of_window(item.sequence);
  }

  /// Lengths of a step that appends `tokens`. NOTE: the step's first query still sees a whole tail in 16 bit, and only
  /// committed tokens leave it.
  static lengths grown(const entry& e, int tokens) {
    const idx after = e.length + tokens;
    if constexpr (Policy::tail == 0) return {e.length, after, e.length, after};
    if (tokens == 0) return {e.length, after, e.body, e.body};
    const idx outside = larger(e.length + 1 - Policy::tail - Policy::sinks, 0) / Policy::tile * Policy::tile;
    return {e.length, after, e.body, larger(e.body, Policy::sinks + outside)};
  }

  /// Table entries that `length` tokens take.
  idx pages_for(idx length) const { return pages_of_rows(plan_.body_rows(length)); }
  idx pages_of_rows(idx rows) const { return tabled && rows > 0 ? ceil_div(rows, plan_.page_rows) : 0; }
  idx missing_pages(sequence s, idx tokens) const {
    const entry& e = find(s);
    detail::expects(tokens >= 0, "sequence ", s.slot, " reserves ", tokens, " tokens");
    if (plan_.window_slots) return 0;
    detail::expects(tokens <= plan_.max_length - e.length, "sequence ", s.slot, " has ", e.length,
                    " tokens and reserves ", tokens, " more; the longest may have ", plan_.max_length);
    return larger(pages_for(e.length + tokens) - e.pages, 0);
  }
  void take_pages(sequence s, idx tokens) {
    if (plan_.window_slots) return;
    entry& e = entries_[std::size_t(s.slot)];
    for (const idx end = pages_for(e.length + tokens); e.pages < end; ++e.pages) row(s.slot)[e.pages] = pool_.take();
  }
  void give_pages(int slot, idx from) {
    entry& e = entries_[std::size_t(slot)];
    while (e.pages > from) {
      page_id& p = row(slot)[--e.pages];
      if (p >= 0) pool_.give(p);
      p = -1;
    }
    e.pages_passed = smaller(e.pages_passed, e.pages);
  }
  /// Gives back pages that no later query sees.
  void release_left_of_window(int slot) {
    if constexpr (slides && tabled) {
      entry& e = entries_[std::size_t(slot)];
      const idx seen = first_seen(e.length, policy_.retention.width()) - Policy::sinks;  // among tokens after the sinks
      const idx first_page = (first_body_slot() + larger(seen, 0)) / plan_.page_rows;
      e.pages_passed = larger(e.pages_passed, ceil_div(first_body_slot(), plan_.page_rows));
      for (; e.pages_passed < smaller(first_page, e.pages); ++e.pages_passed) {
        page_id& p = row(slot)[e.pages_passed];
        pool_.give(p);
        p = -1;
      }
    }
  }

  void check_window(sequence s, idx length) const {
    if constexpr (slides) {
      const entry& e = find(s);
      const idx seen = larger(first_seen(length, policy_.retention.width()), Policy::sinks);
      idx oldest = larger(Policy::sinks, e.lost);
      if (plan_.window_slots) oldest = larger(oldest, e.written - plan_.window_slots);
      if (tabled && e.pages_passed > ceil_div(first_body_slot(), plan_.page_rows))
        oldest = larger(oldest, Policy::sinks + e.pages_passed * plan_.page_rows - first_body_slot());
      detail::expects(seen >= oldest || length <= Policy::sinks, "sequence ", s.slot, " is truncated to ", length,
                      "; its window would show token ", seen, ", and those before ", oldest, " are gone");
    }
  }
  void check_begin(sequence s, int tokens) {
    entry& e = find(s);
    detail::expects(std::exchange(e.checked, checks_) != checks_, "sequence ", s.slot, " is in the step twice");
    detail::expects(tokens >= 0, "sequence ", s.slot, " appends ", tokens, " tokens");
    if constexpr (slides || Policy::tail > 0)
      detail::expects(tokens <= shape_.max_step, "sequence ", s.slot, " appends ", tokens,
                      " tokens in one step; max_step is ", shape_.max_step, ": see in_chunks");
    if (!plan_.window_slots)
      detail::expects(e.length + tokens <= plan_.max_length && pages_for(e.length + tokens) <= e.pages, "sequence ",
                      s.slot, " has ", e.length, " tokens and appends ", tokens, "; that many are not reserved");
  }

  Policy policy_;
  cache_shape shape_;
  detail::arrangement<Policy> plan_;
  buffer<Space> data_;   // [layer]{body | sinks | tail}
  buffer<Space> table_;  // [sequences][table_width]
  page_pool pool_;
  std::vector<entry> entries_;
  std::vector<int> closed_;
  std::uint64_t serial_ = 0;      // of the step begun last
  std::uint64_t checks_ = 0;      // calls of begin
  std::vector<step_item> begun_;  // its items: the workspace is the caller's
  const step_item* begun_at_ = nullptr;
  bool idle_ = true;
};

/// Splits `tokens` into steps of at most `max_step`: `body(first, count)` for each, in order.
template <class Body>
void in_chunks(idx tokens, int max_step, Body&& body) {
  detail::expects(max_step >= 1, "steps of ", max_step, " tokens; at least 1 is needed");
  for (idx first = 0; first < tokens; first += max_step) body(first, int(smaller(max_step, tokens - first)));
}

}  // namespace kvilt::inline KVILT_ABI
