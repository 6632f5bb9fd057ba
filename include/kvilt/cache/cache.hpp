#pragma once

#include <kvilt/cache/copy.hpp>
#include <kvilt/cache/keep_ledger.hpp>
#include <kvilt/cache/scales.hpp>

namespace kvilt::inline KVILT_ABI {

/// Owns K and V of a group of layers of one shape, the page tables and the sequences' lengths.
///
/// A sequence is opened, room is reserved ahead, and each forward pass is a step: `begin`, then `append` and attention
/// on the view of each layer, then `commit` of what was accepted, or `cancel`. A step and its workspace serve until then;
/// used later it would write over committed tokens. Nothing is written by a call that throws.
/// Not thread-safe; the views may be read from any thread between `begin` and `commit`.
///
/// In device memory the cache has K, V and the tables, `bytes().bytes()` bytes; lengths and handles stay with the host,
/// and so does a second table, of as many bytes. A program that holds the cache needs no CUDA: `begin`, `fork` and
/// `reorder` take a stream and need cache/device_cache.cuh. They send what the stream's kernels are to know, in order
/// with these and without waiting for them, through page-locked memory of their own: 8 blocks, each of a step's items
/// and as much of the table as has changed at one time. So a cache is used on one stream at a time: pages that are given
/// back are handed out at once, to work that follows in that stream; who changes streams lets the new one wait for the
/// old. The cache's device is the current one. What is said after a
/// `device_error` is undefined.
template <class Policy, memory_space Space = memory_space::host>
class cache : public detail::keep_ledger<Policy, Space> {
  using counts = detail::keep_ledger<Policy, Space>;

 public:
  using policy_type = Policy;
  using view_type = view_of<Space, Policy>;
  static constexpr bool on_device = Space == memory_space::device;
  static_assert(!on_device || !counts::evicts, "kvilt: tokens are evicted from caches in host memory");
  static_assert(!on_device || !counts::by_head, "kvilt: a cache with page tables by head is in host memory");
  using step_type = typename counts::step_type;  // `step`, or `device_step`
  static constexpr bool has_static_scales =
      has_static_scale<typename Policy::k_format> || has_static_scale<typename Policy::v_format>;

  /// Allocates everything at once: `bytes().bytes()` bytes, no more ever. Throws `invalid_argument`.
  cache(const cache_shape& shape, memory<Space> from, const Policy& policy = {})
      : counts(policy, detail::arrangement<Policy>(policy, shape), shape, from),
        data_(from, std::size_t(plan_.bytes.kv_bytes)),
        scales_(has_static_scales ? std::size_t(shape.layers) : 0) {}

  /// Makes room for `tokens` more than are committed; what a window over pages reserves it holds, so a few steps at a
  /// time are enough for it. Where the sequence would go on in a page that others have too, it gets a copy of that page.
  /// Throws `out_of_pages`, or `invalid_argument` beyond `max_length`, and nothing has changed.
  void reserve(sequence s, idx tokens) {
    counts::check_reserve(s, tokens);
    make_room(s, tokens);
  }
  /// The same, false instead of `out_of_pages`.
  [[nodiscard]] bool try_reserve(sequence s, idx tokens) {
    if (counts::missing_pages(s, tokens) > counts::free_pages()) return false;
    make_room(s, tokens);
    return true;
  }

  /// Keeps of a sequence the rows that are listed, and forgets the others: by how much attention they were given, say
  /// (evict/). places: [layers][kv heads][n], ascending; a row's place is how many rows of its head come before it, as
  /// `column_mass` numbers them, and all of `evictable` that are not listed go. Rows move up byte for byte, and pages that
  /// none is left on are given back, as is what was reserved. A row stays at the position that it has in the text, and
  /// the next token comes after the last there was. Other sequences with the same pages keep theirs: where these would be
  /// written this one gets copies. Throws `out_of_pages` where there are none for that, or `invalid_argument`, also where
  /// heads are to keep different numbers of rows (layers may, in groups of their own: `cache_set`), and nothing has
  /// changed.
  void keep(const host& exec, sequence s, std::span<const int> places) requires(counts::evicts) {
    compact(exec, s, counts::plan_keep(s, places));
  }
  /// The same where each head has pages of its own (`paged_by_head`) and keeps its own number of rows. sizes: [layers]
  /// [kv heads], the lengths of the lists, which follow each other in `places`.
  void keep(const host& exec, sequence s, std::span<const int> places,
            std::span<const int> sizes) requires(counts::evicts&& counts::by_head) {
    compact(exec, s, counts::plan_keep(s, places, sizes));
  }
  /// As every owner truncates. Throws where a token to be forgotten is among those from which others were evicted, and
  /// heads that share their pages have kept different numbers of those before it.
  void truncate(sequence s, idx length) {
    check_truncate(s, length);
    if constexpr (counts::evicts)
      counts::each_table(counts::row(s), [&](int t) { counts::lists()[t] = listed_before(s, length, t); });
    counts::truncate(s, length);
  }

  /// A new sequence that is as `s` is: its tokens, and as much room as it has. Neither sees what the other appends. Both
  /// have the same pages, but for the one that is partly filled, of which it gets a copy, and those that are reserved;
  /// 16-bit sinks and tails, and sequences whose places come by arithmetic, are copied. Throws `out_of_pages`, and nothing
  /// has changed.
  sequence fork(const host& exec, sequence s) requires(!on_device) {
    counts::check_fork(s);
    sequence child;
    const detail::sequence_copy rows = counts::fork_to(s, child);
    copy(exec, {&rows, 1});
    return child;
  }
  template <class Gpu>
  sequence fork(const Gpu& exec, sequence s) requires(on_device) {
    counts::check_fork(s);
    unsigned char* const staged = stage_copies(exec, 1);
    sequence child;
    const detail::sequence_copy rows = counts::fork_to(s, child);
    copy(exec, {&rows, 1}, staged);
    return child;
  }

  /// Afterwards sequence `sequences[i]` is as `sequences[parents[i]]` was, its tokens and its room: the beams of a
  /// search between two steps. A parent may have several children, or none. parents: [n] of 0 to n - 1. One child goes on
  /// where its parent is; the others are forked from it. Throws `out_of_pages`, and nothing has changed.
  void reorder(const host& exec, std::span<const sequence> sequences,
               std::span<const int> parents) requires(!on_device) {
    detail::new_order order = counts::plan_reorder(sequences, parents);
    counts::apply(order, sequences);
    copy(exec, order.copies);
  }
  template <class Gpu>
  void reorder(const Gpu& exec, std::span<const sequence> sequences, std::span<const int> parents) requires(on_device) {
    detail::new_order order = counts::plan_reorder(sequences, parents);
    unsigned char* const staged = stage_copies(exec, idx(order.copies.size()));
    counts::apply(order, sequences);
    copy(exec, order.copies, staged);
  }

  /// The static scales of one layer, for formats that have such: 1 number for the tensor or one per KV head, empty for
  /// a format that writes its own. They are the caller's: kept where they are while the cache is used, never written.
  /// Throws `invalid_argument` for what is no scale; the verbs refuse a layer that has not been given its own.
  /// On the device they are device memory, at which the host cannot look: that they are positive and finite is the
  /// caller's affair.
  void set_scales(int layer, std::span<const float> k, std::span<const float> v) requires(has_static_scales) {
    check_layer(layer);
    scales_[std::size_t(layer)] = {detail::given_scales<Space>("K", policy_.k, k, shape_.kv_heads),
                                   detail::given_scales<Space>("V", policy_.v, v, shape_.kv_heads)};
  }

  /// What the verbs get of one layer.
  view_type view(int layer) const {
    check_layer(layer);
    unsigned char* const base = data_.data() + plan_.body_at(layer);
    unsigned char* const exact = data_.data() + plan_.exact_at(layer);
    const auto at = bound(layer);
    const typename Policy::body_segment body{at, body_rule(layer, at, base), policy_.k, policy_.v,
                                             body_planes(layer, base)};
    if constexpr (Policy::sinks > 0 && Policy::tail > 0)
      return view_type(shape_.kv_heads, sinks(at, body.planes, exact), body, tail(exact + plan_.sinks.layer_bytes()));
    else if constexpr (Policy::sinks > 0)
      return view_type(shape_.kv_heads, sinks(at, body.planes, exact), body);
    else if constexpr (Policy::tail > 0)
      return view_type(shape_.kv_heads, body, tail(exact));
    else
      return view_type(shape_.kv_heads, body);
  }

  /// Bytes of workspace for steps of up to `sequences` sequences.
  std::size_t workspace_bytes(const host& exec, int sequences) const requires(!on_device) {
    return kvilt::workspace_bytes(exec, sequences, policy_.k.dim(), policy_.v.dim());
  }
  /// The same in device memory, of up to `most_new_tokens` tokens of each sequence.
  template <class Gpu>
  std::size_t workspace_bytes(const Gpu& exec, int sequences, int q_heads, int most_new_tokens = 1) const
      requires(on_device) {
    return detail::device_side<Gpu>::workspace_bytes(exec, view(0), sequences, q_heads, most_new_tokens) +
           detail::position_bytes(detail::bytes_of(sequences, most_new_tokens));
  }

  /// Plans a step in which sequence `sequences[i]` appends `new_tokens[i]` tokens (0 is legal). Room must be reserved.
  /// `rope_positions`: one of each new token, read while the step is in use, or empty for positions in the text.
  step begin(const host& exec, std::span<const sequence> sequences, std::span<const int> new_tokens,
             std::span<unsigned char> workspace, std::span<const idx> rope_positions = {}) requires(!on_device) {
    counts::check_batch(sequences, new_tokens, rope_positions.size());
    step_item* items = nullptr;
    step s = detail::place_step(idx(sequences.size()), workspace, items);
    check_workspace(exec, s);
    s.rope_positions = rope_positions.empty() ? nullptr : rope_positions.data();
    counts::lay_out(s, items, sequences, new_tokens);
    counts::start(s, items, sequences);
    return s;
  }

  /// The same on a stream, for attention of `q_heads` query heads. All spans but the workspace are host memory, and are
  /// the caller's again at once. An engine with a captured graph begins each step outside of it, on the stream in which
  /// the graph is launched next, with the bounds and the workspace of the step for which it was captured: the graph then
  /// finds the new step where the old one was, and its positions if it was captured with such. Throws
  /// `invalid_argument` before anything is launched, also where the stream is being captured: what is sent is the
  /// host's of this moment.
  template <class Gpu>
  device_step begin(const Gpu& exec, std::span<const sequence> sequences, std::span<const int> new_tokens, int q_heads,
                    std::span<unsigned char> workspace, std::span<const idx> rope_positions = {},
                    const device_bounds& bounds = {}) requires(on_device) {
    using side = detail::device_side<Gpu>;
    counts::check_batch(sequences, new_tokens, rope_positions.size());
    const device_bounds most = detail::bounds_of(new_tokens, bounds);
    const view_type first = view(0);
    side::check(exec, data_.data());
    detail::upload to;
    to.positions = detail::place_positions(most.kv_rows, workspace);
    device_step s = side::place(first, most.sequences, q_heads, most.most_new_tokens, workspace, to.items);
    s.kv_rows = s.q_rows = most.kv_rows;
    s.most_new_tokens = most.most_new_tokens;
    s.rope_positions = rope_positions.empty() ? nullptr : to.positions;
    const detail::upload_places at(most.sequences, idx(rope_positions.size()), ids().changes());
    unsigned char* const staged = side::stage(exec, staging_, at.end, least_staged());
    step_item* const items = detail::put_items(to, at, staged, most.sequences, rope_positions);
    step rows;
    counts::lay_out(rows, items, sequences, new_tokens);
    detail::pad_items(rows, items, idx(sequences.size()), most.sequences);
    copy_owed(exec);
    send(exec, to, at, staged);
    side::share(exec, first, s);
    counts::start(s, items, sequences);
    return s;
  }

 private:
  template <memory_space, class...>
  friend class basic_cache_set;
  friend struct detail::persistence;
  using counts::pages_;
  using counts::plan_;
  using counts::policy_;
  using counts::shape_;

  // Some part of a sequence lies in a place of its own.
  static constexpr bool has_places = !counts::tabled || Policy::exact_sinks > 0 || Policy::tail > 0;

  void compact(const host& exec, sequence s, const detail::keep_plan& plan) {
    const int row = counts::row(s), heads = shape_.kv_heads;
    counts::own_moved(s, plan);
    copy_owed(exec);
    exec.for_each(counts::all_heads(), [&](idx list, int) {
      view(int(list / heads)).each([&](const auto& seg) {
        plan.of(list).compact(seg, plan.heads[std::size_t(list)], row, int(list % heads));
      });
    });
    counts::moved(s, plan);
  }
  void copy(const host& exec, std::span<const detail::sequence_copy> copies) {
    const idx heads = shape_.kv_heads, tasks = shape_.layers * heads;
    if constexpr (has_places)
      exec.for_each(idx(copies.size()) * tasks, [&](idx i, int) {
        const detail::sequence_copy& c = copies[std::size_t(i / tasks)];
        detail::copy_sequence(view(int(i % tasks / heads)), c.n, c.from, c.to, int(i % heads));
      });
    copy_owed(exec);
  }
  void make_room(sequence s, idx tokens) {
    counts::take_room(s, tokens);
    if constexpr (counts::tabled && !on_device) {
      // NOTE: at once, also if that takes a while: rows are read and written through views without a step, by `copy_rows`.
      copy_owed(host());
    }
  }
  void copy_owed(const host& exec) {
    const std::span<const detail::copied_page> owed = pages_.owed();
    exec.for_each(owed.empty() ? 0 : plan_.page_layers(shape_), [&](idx layer, int) {
      for (const detail::copied_page& c : owed) plan_.body.copy_page(data_.data() + plan_.body_at(layer), c);
    });
    pages_.settled();
  }
  void check_truncate(sequence s, idx length) const {
    counts::check_truncate(s, length);
    if constexpr (counts::evicts && !counts::by_head) listed_before(s, length, counts::row(s));
  }
  /// What is listed of a table whose sequence ends at `length`.
  listed_rows listed_before(sequence s, idx length, int table) const {
    const int row = counts::row(s), nth = table - counts::first_table(row);
    const listed_rows now = counts::lists()[table];
    const idx listed_end = Policy::sinks + now.count + now.evicted;
    if (length >= listed_end) return now;
    idx rows = -1;
    for (int list = counts::by_head ? nth : 0; list < (counts::by_head ? nth + 1 : counts::all_heads()); ++list) {
      const int layer = list / shape_.kv_heads, head = list % shape_.kv_heads;
      view(layer).each([&](const auto& seg) {
        if constexpr (requires { seg.retention.rows_before(row, head, length); }) {
          const idx here = seg.retention.rows_before(row, head, length);
          rows = rows < 0 ? here : rows;
          detail::expects(here == rows, "sequence ", s.slot, " is truncated to ", length, "; of the tokens before it ",
                          here, " are kept in head ", head, " of layer ", layer, " and ", rows,
                          " in the first: it can be cut to ", listed_end, " or more");
        }
      });
    }
    return {std::int32_t(rows), std::int32_t(larger(length - Policy::sinks, 0) - rows)};
  }
  void check_workspace(const host& exec, const step& s) const {
    detail::check_scratch(exec, s, policy_.k.dim(), policy_.v.dim());
  }
  detail::table_memory<Space>& ids() { return pages_.memory_of_ids(); }
  /// Staged memory for a step that finds little of the table changed.
  std::size_t least_staged() const {
    return std::size_t(shape_.sequences) * (sizeof(step_item) + sizeof(detail::table_run)) +
           std::size_t(smaller(plan_.bytes.table_bytes, 1 << 16));
  }
  /// Sends what has changed of the table, and lists that are staged already.
  template <class Gpu>
  void send(const Gpu& exec, detail::upload& to, const detail::upload_places& at, unsigned char* staged) {
    detail::put_changes(to, at, staged, ids());
    detail::device_side<Gpu>::send(exec, staging_, to, ids().blank() ? ids().bytes() : 0);
    ids().sent();
  }
  /// Memory for what the new pages of `rows` copies take, and those that names put in the place of their parents'. NOTE:
  /// before anything changes.
  template <class Gpu>
  unsigned char* stage_copies(const Gpu& exec, idx rows) {
    using side = detail::device_side<Gpu>;
    side::check(exec, data_.data());
    return side::stage(exec, staging_,
                       detail::upload_places(0, 0, ids().changes(pages_.keeps_names() ? 2 * rows : rows)).end,
                       least_staged());
  }
  template <class Gpu>
  void copy(const Gpu& exec, std::span<const detail::sequence_copy> copies, unsigned char* staged) {
    if (copies.empty()) return;
    copy_owed(exec);
    detail::upload to;
    send(exec, to, detail::upload_places(0, 0, ids().changes()), staged);
    if constexpr (has_places) detail::device_side<Gpu>::copy(exec, view(0), copies, shape_.layers, plan_.layer_bytes());
  }
  /// NOTE: before anything that is launched writes a page: pages that these are copies of may have other owners by now.
  template <class Gpu>
  void copy_owed(const Gpu& exec) {
    if constexpr (counts::tabled) {
      std::span<const detail::copied_page> owed = pages_.owed();
      for (std::size_t n = 0; !owed.empty(); owed = owed.subspan(n)) {
        n = detail::at_once(owed);
        detail::device_side<Gpu>::copy_pages(exec, plan_.body, data_.data(), owed.first(n), shape_.layers,
                                             plan_.layer_bytes());
      }
      pages_.settled();
    }
  }
  void check_layer(int layer) const {
    detail::expects(layer >= 0 && layer < shape_.layers, "layer ", layer, "; the cache has layers 0 to ",
                    shape_.layers - 1);
    detail::expects(!counts::moved_from(), "layer ", layer, " of a cache that has been moved from");
  }
  auto bound(int layer) const {
    if constexpr (counts::by_head)
      return policy_.layout.bind(counts::table() + layer * shape_.kv_heads * plan_.bytes.table_width,
                                 plan_.bytes.table_width, plan_.tables);
    else if constexpr (counts::tabled)
      return policy_.layout.bind(counts::table(), plan_.bytes.table_width);
    else
      return policy_.layout.bind(plan_.request);
  }
  template <class Layout>
  auto body_rule(int layer, const Layout& at, unsigned char* base) const {
    if constexpr (counts::evicts)
      return listed_body(at, counts::lists() + (counts::by_head ? layer * shape_.kv_heads : 0),
                         plan_.body.positions(base), Policy::sinks);
    else
      return interval<part::body, typename Policy::retention_type>(policy_.retention, Policy::sinks,
                                                                   {counts::first_body_slot(), plan_.window_slots});
  }
  geometry body_planes(int layer, unsigned char* base) const {
    const geometry planes = plan_.body.at(base);
    if constexpr (has_static_scales)
      return detail::with_scales(planes, policy_.k, policy_.v, scales_[std::size_t(layer)]);
    else
      return planes;
  }
  template <class Layout>
  auto sinks(const Layout& at, const geometry& body, unsigned char* exact) const {
    const interval<part::sinks, typename Policy::retention_type> keep(policy_.retention, Policy::sinks);
    if constexpr (Policy::exact_sinks > 0)
      return typename Policy::sinks_segment{
          {Policy::sinks}, keep, policy_.k_exact(), policy_.v_exact(), plan_.sinks.at(exact)};
    else
      return typename Policy::sinks_segment{at, keep, policy_.k, policy_.v, body};
  }
  auto tail(unsigned char* exact) const {
    const interval<part::tail, typename Policy::retention_type> keep(policy_.retention, Policy::sinks,
                                                                     {0, plan_.tail_slots});
    return typename Policy::tail_segment{
        {plan_.tail_slots}, keep, policy_.k_exact(), policy_.v_exact(), plan_.tail.at(exact)};
  }

  buffer<Space> data_;                        // [layer]{body | sinks | tail}
  std::vector<detail::layer_scales> scales_;  // [layers]
  [[no_unique_address]] std::conditional_t<on_device, detail::staging_handle, detail::nothing> staging_;
};

}  // namespace kvilt::inline KVILT_ABI
