#pragma once

#include <kvilt/cache/cache.hpp>
#include <kvilt/cache/set_shape.hpp>

#include <array>
#include <span>
#include <tuple>
#include <utility>

namespace kvilt::inline KVILT_ABI {

namespace detail {

/// Calls `undo` where an error leaves what has not been said to be done.
template <class Undo>
class on_failure {
 public:
  explicit on_failure(Undo undo) : undo_(undo) {}
  on_failure(const on_failure&) = delete;
  on_failure& operator=(const on_failure&) = delete;
  ~on_failure() {
    if (!done_) undo_();
  }
  void done() { done_ = true; }

 private:
  Undo undo_;
  bool done_ = false;
};

}  // namespace detail

/// Several caches behind one sequence: layers of different kind (windows and all tokens, dims, heads), formats that
/// differ by layer, and heads of one layer kept in different formats. Each group is a `cache` with pages of its own; a
/// sequence has the same handle in all of them. Verbs mean what they mean for a `cache`, and hold for all groups or for
/// none: what one group refuses changes nothing in any. Errors name the group, and the layer inside `visit`.
template <memory_space Space, class... Policies>
class basic_cache_set {
  static_assert(sizeof...(Policies) >= 1, "kvilt: a set has at least one group");

 public:
  static constexpr int groups = int(sizeof...(Policies));
  static constexpr bool on_device = Space == memory_space::device;
  /// A step of each group: lengths of tails differ. On the host all share one scratch.
  using step_type = std::array<std::conditional_t<on_device, device_step, step>, std::size_t(groups)>;

  /// Layers are numbered from 0 without gaps, and so are the KV heads of each. Allocates `bytes().bytes()` bytes.
  basic_cache_set(const set_shape& shape, memory<Space> from, const layer_group<Policies>&... of)
      : basic_cache_set(indices(), shape, from, of...) {}

  set_budget<groups> bytes() const {
    return {gather([](const auto& c) { return c.bytes(); })};
  }
  int layers() const { return map_.layers(); }
  /// Which group keeps which KV heads of a layer, from head 0 on.
  std::span<const layer_share> shares(int layer) const { return map_.at(layer); }
  /// One group as it is, to look at.
  template <int Group>
  const auto& group() const {
    return std::get<std::size_t(Group)>(caches_);
  }

  int free_sequences() const { return std::get<0>(caches_).free_sequences(); }
  /// The least of all groups.
  idx free_tokens() const {
    return least([](const auto& c) { return c.free_tokens(); });
  }
  idx max_length() const {
    return least([](const auto& c) { return c.max_length(); });
  }

  sequence open() {
    sequence s;
    each([&](auto& c, int) { s = c.open(); });
    return s;
  }
  /// With as much of `prompt` as every group finds: all have the same tokens of it.
  opened_sequence open(std::span<const token_id> prompt, const prompt_options& options = {}) {
    each([&](auto& c, int) { c.check_prompt(options); });
    const idx most = cached_tokens(prompt, options);
    opened_sequence s;
    each([&](auto& c, int) { s = c.open_within(prompt, options, most); });
    return s;
  }
  idx name(sequence s, std::span<const token_id> tokens) {
    idx found = detail::no_end;
    each([&](auto& c, int) {
      found = smaller(found, c.name(s, tokens));
    });  // NOTE: what one refuses the first has refused
    return found;
  }
  idx cached_tokens(std::span<const token_id> prompt, const prompt_options& options = {}) {
    idx most = detail::no_end;
    each([&](auto& c, int) { most = smaller(most, c.cached_tokens(prompt, options)); });
    // NOTE: whole pages of every group, of whatever size.
    for (idx before = -1; std::exchange(before, most) != most;)
      each([&](const auto& c, int) { most = most / c.plan_.page_rows * c.plan_.page_rows; });
    return most;
  }
  void close(sequence s) {
    each([&](auto& c, int) { c.close(s); });
  }
  idx length(sequence s) const { return std::get<0>(caches_).length(s); }

  void reserve(sequence s, idx tokens) {
    each([&](const auto& c, int) { c.check_reserve(s, tokens); });
    each([&](auto& c, int) { c.reserve(s, tokens); });
  }
  [[nodiscard]] bool try_reserve(sequence s, idx tokens) {
    bool fits = true;
    each([&](const auto& c, int) { fits = c.missing_pages(s, tokens) <= c.free_pages() && fits; });
    if (fits) each([&](auto& c, int) { c.reserve(s, tokens); });
    return fits;
  }
  void truncate(sequence s, idx length) {
    each([&](const auto& c, int) { c.check_truncate(s, length); });
    each([&](auto& c, int) { c.truncate(s, length); });
  }

  /// Evicts tokens from the layers of one group, as `cache::keep` has it: groups may keep different numbers of rows.
  template <int Group>
  void keep(const host& exec, sequence s, std::span<const int> places) {
    detail::in_group(Group, [&] { std::get<std::size_t(Group)>(caches_).keep(exec, s, places); });
  }
  template <int Group>
  void keep(const host& exec, sequence s, std::span<const int> places, std::span<const int> sizes) {
    detail::in_group(Group, [&] { std::get<std::size_t(Group)>(caches_).keep(exec, s, places, sizes); });
  }

  /// The static scales of a group's own layer, as `cache::set_scales` has them.
  template <int Group>
  void set_scales(int layer_in_group, std::span<const float> k, std::span<const float> v) {
    detail::in_group(Group, [&] { std::get<std::size_t(Group)>(caches_).set_scales(layer_in_group, k, v); });
  }

  /// What each group holds of a sequence, for `copy_rows` on its views; then `adopt` in all groups or in none.
  std::array<lengths, std::size_t(groups)> holds(sequence s, idx more = 0) const {
    return gather([&](const auto& c) { return c.holds(s, more); });
  }
  void adopt(sequence s, const std::array<lengths, std::size_t(groups)>& n) {
    each([&](const auto& c, int g) { c.check_adopt(s, n[std::size_t(g)]); });
    each([&](auto& c, int g) { c.adopt(s, n[std::size_t(g)]); });
  }

  sequence fork(const host& exec, sequence s) requires(!on_device) {
    sequence child;
    each([&](const auto& c, int) { c.check_fork(s); });
    each([&](auto& c, int) { child = c.fork(exec, s); });
    return child;
  }
  void reorder(const host& exec, std::span<const sequence> sequences,
               std::span<const int> parents) requires(!on_device) {
    std::array<detail::new_order, std::size_t(groups)> orders;
    each([&](auto& c, int g) { orders[std::size_t(g)] = c.plan_reorder(sequences, parents); });
    each([&](auto& c, int g) { c.apply(orders[std::size_t(g)], sequences); });
    each([&](auto& c, int g) { c.copy(exec, orders[std::size_t(g)].copies); });
  }
  /// On a stream, as a `cache` in device memory has them.
  template <class Gpu>
  sequence fork(const Gpu& exec, sequence s) requires(on_device) {
    sequence child;
    std::array<unsigned char*, std::size_t(groups)> staged{};
    each([&](const auto& c, int) { c.check_fork(s); });
    each([&](auto& c, int g) { staged[std::size_t(g)] = c.stage_copies(exec, 1); });
    each([&](auto& c, int g) {
      const detail::sequence_copy rows = c.fork_to(s, child);
      c.copy(exec, std::span(&rows, 1), staged[std::size_t(g)]);
    });
    return child;
  }
  template <class Gpu>
  void reorder(const Gpu& exec, std::span<const sequence> sequences, std::span<const int> parents) requires(on_device) {
    std::array<detail::new_order, std::size_t(groups)> orders;
    std::array<unsigned char*, std::size_t(groups)> staged{};
    each([&](auto& c, int g) { orders[std::size_t(g)] = c.plan_reorder(sequences, parents); });
    each([&](auto& c, int g) {
      staged[std::size_t(g)] = c.stage_copies(exec, idx(orders[std::size_t(g)].copies.size()));
    });
    each([&](auto& c, int g) { c.apply(orders[std::size_t(g)], sequences); });
    each([&](auto& c, int g) { c.copy(exec, orders[std::size_t(g)].copies, staged[std::size_t(g)]); });
  }

  /// Bytes of workspace for steps of up to `sequences` sequences.
  std::size_t workspace_bytes(const host& exec, int sequences) const requires(!on_device) {
    std::size_t most = 0;
    for (const std::size_t bytes : gather([&](const auto& c) { return c.workspace_bytes(exec, sequences); }))
      most = most < bytes ? bytes : most;
    return most + std::size_t(groups - 1) * detail::item_bytes(sequences);
  }

  step_type begin(const host& exec, std::span<const sequence> sequences, std::span<const int> new_tokens,
                  std::span<unsigned char> workspace, std::span<const idx> rope_positions = {}) requires(!on_device) {
    each([&](auto& c, int) { c.check_batch(sequences, new_tokens, rope_positions.size()); });
    step_type s;
    std::array<step_item*, std::size_t(groups)> items{};
    for (std::size_t g = 0; g < s.size(); ++g) {
      s[g] = detail::place_step(idx(sequences.size()), workspace, items[g]);
      workspace = {s[g].scratch, s[g].scratch_bytes};
    }
    // NOTE: what the last group's items leave is scratch for all: only one verb runs at a time.
    for (step& of : s) of.scratch = workspace.data(), of.scratch_bytes = workspace.size();
    each([&](const auto& c, int g) { c.check_workspace(exec, s[std::size_t(g)]); });
    each([&](auto& c, int g) {
      step& of = s[std::size_t(g)];
      of.rope_positions = rope_positions.empty() ? nullptr : rope_positions.data();
      c.lay_out(of, items[std::size_t(g)], sequences, new_tokens);
      c.start(of, items[std::size_t(g)], sequences);
    });
    return s;
  }

  /// On a stream, as a `cache` in device memory has them. q_heads: those of the model's layers, in which each group has
  /// its share, the same in all of its layers.
  template <class Gpu>
  std::size_t workspace_bytes(const Gpu& exec, int sequences, int q_heads, int most_new_tokens = 1) const
      requires(on_device) {
    std::size_t all = 256, group = 0;
    const auto add = [&](const auto& c) {
      all += group_bytes(exec, c, sequences, query_heads(int(group), q_heads), most_new_tokens);
      return ++group;
    };
    gather(add);
    return all;
  }
  template <class Gpu>
  step_type begin(const Gpu& exec, std::span<const sequence> sequences, std::span<const int> new_tokens, int q_heads,
                  std::span<unsigned char> workspace, std::span<const idx> rope_positions = {},
                  const device_bounds& bounds = {}) requires(on_device) {
    each([&](auto& c, int) { c.check_batch(sequences, new_tokens, rope_positions.size()); });
    const device_bounds most = detail::bounds_of(new_tokens, bounds);
    step_type s;
    detail::on_failure undo([&] { cancel(); });
    each([&](auto& c, int g) {
      const int heads = query_heads(g, q_heads);
      const std::size_t need = group_bytes(exec, c, most.sequences, heads, most.most_new_tokens);
      const std::size_t share = g + 1 < groups && need < workspace.size() ? need : workspace.size();
      s[std::size_t(g)] = c.begin(exec, sequences, new_tokens, heads, workspace.first(share), rope_positions, most);
      workspace = workspace.subspan(share);
    });
    undo.done();
    return s;
  }
  void commit(const step_type& s, std::span<const int> accepted = {}) {
    each([&](const auto& c, int g) { c.check_commit(s[std::size_t(g)], accepted); });
    each([&](auto& c, int g) { c.commit(s[std::size_t(g)], accepted); });
  }
  void cancel() {
    each([](auto& c, int) { c.cancel(); });
  }

  /// The view of a group's own layer.
  template <int Group>
  auto view(int layer_in_group) const {
    return detail::in_group(Group, [&] { return group<Group>().view(layer_in_group); });
  }

  /// `body(view, step, heads)` for each group that keeps heads of the model's layer `layer`, from head 0 on; `heads`
  /// cuts their share out of the layer's tensors:
  ///
  ///     set.visit(layer, s, [&](const auto& view, const step& s, const head_range& heads) {
  ///       append(host, view, s, heads.kv(k), heads.kv(v));
  ///       attend(host, view, s, heads.queries(q), heads.queries(out));
  ///     });
  template <class Body>
  void visit(int layer, const step_type& s, Body&& body) const {
    for (const layer_share& share : map_.at(layer))
      detail::named(detail::set_place{share.group, layer}, [&] { visit_share(share, s, body, indices()); });
  }

 private:
  friend struct detail::persistence;
  using indices = std::make_index_sequence<sizeof...(Policies)>;

  template <std::size_t... G>
  basic_cache_set(std::index_sequence<G...>, const set_shape& shape, memory<Space> from,
                  const layer_group<Policies>&... of)
      : map_(detail::map_layers(of...)), caches_{detail::in_group(int(G), [&] {
          return cache<Policies, Space>(detail::shape_of(shape, of), from, of.policy);
        })...} {}

  /// Query heads that read a group's KV heads, where a layer has `q_heads`.
  int query_heads(int group, int q_heads) const {
    int found = 0;
    for (int layer = 0; layer < map_.layers(); ++layer)
      for (const layer_share& share : map_.at(layer)) {
        if (share.group != group) continue;
        const int heads = share.heads.queries(q_heads);
        detail::expects(found == 0 || heads == found, "layer ", layer, ": ", heads,
                        " query heads read the group's heads; in another of its layers it is ", found);
        found = heads;
      }
    return found;
  }
  /// A group's share of a workspace. NOTE: whole lines, so that the next one begins on a line as well.
  template <class Gpu, class Cache>
  static std::size_t group_bytes(const Gpu& exec, const Cache& c, int sequences, int q_heads, int most_new_tokens) {
    return std::size_t(round_up(idx(c.workspace_bytes(exec, sequences, q_heads, most_new_tokens)), 256));
  }

  template <class Body, std::size_t... G>
  void visit_share(const layer_share& share, const step_type& s, Body& body, std::index_sequence<G...>) const {
    ((int(G) == share.group ? void(body(group<int(G)>().view(share.layer), s[G], share.heads)) : void()), ...);
  }

  /// `body(cache, group)` for each group, in order.
  template <class Body>
  void each(Body&& body) {
    int g = 0;
    const auto next = [&](auto& c) {
      detail::in_group(g, [&] { body(c, g); });
      ++g;
    };
    std::apply([&](auto&... c) { (next(c), ...); }, caches_);
  }
  template <class Answer>
  auto gather(Answer&& answer) const {
    return std::apply([&](const auto&... c) { return std::array{answer(c)...}; }, caches_);
  }
  template <class Answer>
  idx least(Answer&& answer) const {
    idx smallest = detail::no_end;
    for (const idx x : gather(answer)) smallest = smaller(smallest, x);
    return smallest;
  }

  detail::layer_map map_;
  std::tuple<cache<Policies, Space>...> caches_;
};

/// Groups of caches in host memory.
template <class... Policies>
using cache_set = basic_cache_set<memory_space::host, Policies...>;

/// Groups of caches in device memory.
template <class... Policies>
using device_cache_set = basic_cache_set<memory_space::device, Policies...>;

}  // namespace kvilt::inline KVILT_ABI
