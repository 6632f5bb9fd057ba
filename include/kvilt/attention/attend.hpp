#pragma once

#include <kvilt/attention/host/block.hpp>
#include <kvilt/attention/positions.hpp>
#include <kvilt/attention/variant.hpp>
#include <kvilt/cache/append.hpp>

#include <cmath>
#include <type_traits>

namespace kvilt::inline KVILT_ABI {

/// Attention over a cache, as a functor: softmax(scale q K^T, changed and masked by the variant) V over every segment
/// of the view. Any number of queries a sequence: decode, chunks and prefill are one call.
template <class Variant = causal, class Positions = text_positions>
class attention {
  static_assert(detail::check_variant<Variant>());

 public:
  /// `scale` 0 stands for 1 / sqrt(k_dim).
  constexpr explicit attention(Variant variant = {}, float scale = 0, Positions positions = {})
      : variant_(variant), scale_(scale), positions_(positions) {}

  constexpr const Variant& variant() const { return variant_; }
  constexpr const Positions& positions() const { return positions_; }
  float scale(int k_dim) const { return scale_ != 0 ? scale_ : 1 / std::sqrt(float(k_dim)); }

  /// q: [s.q_rows][q heads][k_dim], RoPE applied; out: [s.q_rows][q heads][v_dim]; lse, optional: [s.q_rows][q heads].
  /// A query that sees no key gives 0 and -infinity. A variant's sink is part of the log-sum-exp, as it is of what the
  /// output was divided by: parts over disjoint keys merge as ever if one of them alone has the sink (or none, and
  /// `merge_sink` adds it). Throws `invalid_argument` before anything is written.
  /// On the host a query's bits depend on what it sees alone: not on pages, neighbours, the step's split or the number of
  /// workers.
  /// Where it runs is `exec`'s choice: each backend has its `run_attention`.
  template <class Exec, kv_view View, class Step, class Q, class Out>
  void operator()(const Exec& exec, const View& view, const Step& s, rows<Q> q, rows<Out> out,
                  natural_lse lse = {}) const {
    run_attention(exec, *this, view, s, q, out, lse);
  }

 private:
  Variant variant_;
  float scale_;
  Positions positions_;
};

template <class Variant>
attention(Variant) -> attention<Variant>;

namespace detail {

/// The rows that a window keeps are those of the step's new tokens: a query before them would see too few.
template <class Retention>
void check_window(const Retention&, const step& s) {
  if constexpr (requires { Retention::slides; })
    for (int i = 0; Retention::slides && i < s.size; ++i)
      expects(s.items[i].queries <= s.items[i].new_tokens, "sequence ", s.items[i].sequence, " has ",
              s.items[i].queries, " queries and ", s.items[i].new_tokens,
              " new tokens; over a window no query may be older than these");
}

template <class View, class Q, class Out>
void check_answers(const View& view, const step& s, const rows<Q>& q, const rows<Out>& out, natural_lse lse) {
  expects(out.heads == q.heads && out.dim == view.v_dim(), "the output has ", out.heads, " heads of ", out.dim,
          " numbers; Q has ", q.heads, " and the cache's values ", view.v_dim());
  check_memory(out.data, s.q_rows, "the output of ", s.q_rows, " rows");
  check_written("rows of the output", out, s.q_rows);
  if (lse) check_written(lse, s.q_rows, q.heads);
}

/// Where keys lie that any query of the item may see.
template <class Variant>
position_range seen_by(const Variant& variant, const step_item& item, int q_heads, int kv_heads) {
  position_range all{no_end, 0};
  for (int i = 0; i < item.queries; ++i)
    for (int head = 0; head < q_heads; ++head) {
      const where w{item.sequence, head, head / (q_heads / kv_heads), i, item.query_position(i), 0};
      const position_range one = tiles_of(variant, w);
      all = {smaller(all.first, one.first), larger(all.last, one.last)};
    }
  return all;
}

/// Whether the step's queries can be asked of the view.
template <class Variant, class Positions, class View, class Q>
void check_asked(const host& exec, const attention<Variant, Positions>& a, const View& view, const step& s,
                 const rows<Q>& q) {
  if (s.q_rows > 0) check_hooks(a.variant());
  check_step(s);
  check_view(view);
  check_queries(s, q, view.k_dim());
  expects(q.heads >= 1 && q.heads % view.kv_heads() == 0, "Q has ", q.heads, " heads; a multiple of the cache's ",
          view.kv_heads(), " is needed");
  view.each([&](const auto& seg) { check_window(seg.retention, s); });
  check_capacity(view, s);
  expects(std::isfinite(a.scale(view.k_dim())), "scores are scaled by ", a.scale(view.k_dim()),
          "; a finite number is needed");
  check_scratch(exec, s, view.k_dim(), view.v_dim());
  if constexpr (requires { a.positions().turn; }) check_rope(a.positions().turn, view.k_dim());
  if constexpr (std::is_same_v<Positions, rope_on_read>)
    expects(s.rope_positions == nullptr,
            "the step has positions of its own for RoPE; keys that are turned when they are read stand at their "
            "positions in the text");
  check_reachable(view, s, [&](const step_item& item) { return seen_by(a.variant(), item, q.heads, view.kv_heads()); });
}

/// How a step's attention is cut into tasks: blocks of rows of one sequence and KV head.
struct host_tasks {
  int group = 0;  // query heads of a KV head
  int heads = 0;  // KV heads
  idx blocks = 0;
  idx count = 0;
  int most_rows = 0;  // of one task

  host_tasks(const step& s, int q_heads, int kv_heads) : group(q_heads / kv_heads), heads(kv_heads) {
    int most = 0;
    for (int i = 0; i < s.size; ++i) most = s.items[i].queries > most ? s.items[i].queries : most;
    blocks = ceil_div(idx(most) * group, host_tile::rows);
    count = idx(s.size) * heads * blocks;
    most_rows = int(smaller(idx(most) * group, host_tile::rows));
  }
  const step_item& item(const step& s, idx task) const { return s.items[task / (heads * blocks)]; }
  int head(idx task) const { return int(task / blocks % heads); }
  int first(idx task) const { return int(task % blocks * host_tile::rows); }
  /// Rows of the task; not above 0 where the item has none left.
  int rows(const step& s, idx task) const {
    return int(smaller(idx(item(s, task).queries) * group - first(task), host_tile::rows));
  }
};

/// Everything that the blocks of one call share.
template <class View, class Variant, class Positions, class Q, class Out>
class host_attention {
 public:
  host_attention(const host& exec, const attention<Variant, Positions>& a, const View& view, const step& s,
                 const rows<Q>& q, const rows<Out>& out, natural_lse lse)
      : exec_(exec),
        kernels_(kernels_for(exec.instructions())),
        attention_(a),
        view_(view),
        step_(s),
        q_(q),
        out_(out),
        lse_(lse),
        tasks_(s, q.heads, view.kv_heads()) {}

  void run() const {
    if (tasks_.count == 0) return;
    const idx leaves = View::ordered ? this->leaves() : 1, room = states_of_room();
    // NOTE: with fewer tasks than keep every worker busy, their keys are shared out, leaf by leaf; bits stay the same.
    if (leaves > 1 && exec_.workers() > 1 && tasks_.count < 4 * exec_.workers() && room >= 2 * tasks_.count)
      share_keys(leaves, room);
    else
      exec_.for_each(tasks_.count, [&](idx task, int worker) { run_task(task, worker); });
  }

 private:
  using block_type = host_block<View, Variant, Positions>;

  /// For the task's rows, whose queries are not read.
  block_type seats_of(idx task, int worker) const {
    float* const scratch = worker_scratch(step_, worker, view_.k_dim(), view_.v_dim());
    block_type block(kernels_, view_, attention_.variant(), attention_.positions(), attention_.scale(view_.k_dim()),
                     tasks_.item(step_, task), tasks_.head(task), tasks_.group,
                     reinterpret_cast<unsigned char*>(scratch));
    block.seat(tasks_.first(task), tasks_.rows(step_, task));
    return block;
  }
  block_type block_of(idx task, int worker) const {
    block_type block = seats_of(task, worker);
    block.load(q_);
    return block;
  }
  void run_task(idx task, int worker) const {
    if (tasks_.rows(step_, task) <= 0) return;
    block_type block = block_of(task, worker);
    block.attend(view_);
    block.finish(block.total(), out_, lse_);
  }

  idx leaves() const {
    idx most = 0;
    for (int i = 0; i < step_.size; ++i) most = larger(most, step_.items[i].n.after);
    return ceil_div(most, host_tile::leaf);
  }
  std::size_t shared_at() const {
    return std::size_t(exec_.workers()) * host_tile::worker_bytes(view_.k_dim(), view_.v_dim());
  }
  idx states_of_room() const {
    return idx(step_.scratch_bytes - shared_at()) / larger(host_tile::state_bytes(tasks_.most_rows, view_.v_dim()), 1);
  }
  row_states state(idx i) const {
    const int rows = tasks_.most_rows;
    unsigned char* const at = step_.scratch + shared_at() + i * host_tile::state_bytes(rows, view_.v_dim());
    return row_states::at(reinterpret_cast<float*>(at), rows, view_.v_dim());
  }

  /// A few leaves of every task at a time, as many as there is room for; then they are added in order.
  void share_keys(idx leaves, idx room) const {
    const idx wave = smaller(room / tasks_.count - 1, leaves);
    const auto total = [&](idx task) { return state(task); };
    const auto part = [&](idx task, idx leaf) { return state(tasks_.count + task * wave + leaf); };
    for (idx task = 0; task < tasks_.count; ++task)
      if (tasks_.rows(step_, task) > 0) total(task).clear(tasks_.rows(step_, task));
    for (idx first = 0; first < leaves; first += wave) {
      const idx count = smaller(wave, leaves - first);
      exec_.for_each(tasks_.count * count, [&](idx unit, int worker) {
        const idx task = unit / count, leaf = unit % count;
        if (tasks_.rows(step_, task) > 0) block_of(task, worker).attend_leaf(view_, first + leaf, part(task, leaf));
      });
      exec_.for_each(tasks_.count, [&](idx task, int worker) {
        const int rows = tasks_.rows(step_, task);
        if (rows <= 0) return;
        for (idx leaf = 0; leaf < count; ++leaf) total(task).add(kernels_, part(task, leaf), rows);
        if (first + count == leaves) seats_of(task, worker).finish(total(task), out_, lse_);
      });
    }
  }

  const host& exec_;
  const host_kernels& kernels_;
  const attention<Variant, Positions>& attention_;
  const View& view_;
  const step& step_;
  const rows<Q>& q_;
  const rows<Out>& out_;
  natural_lse lse_;
  host_tasks tasks_;
};

}  // namespace detail

/// Attention on the host.
template <class Variant, class Positions, host_view View, class Q, class Out>
void run_attention(const host& exec, const attention<Variant, Positions>& a, const View& view, const step& s, rows<Q> q,
                   rows<Out> out, natural_lse lse) {
  detail::check_asked(exec, a, view, s, q);
  detail::check_answers(view, s, q, out, lse);
  detail::host_attention(exec, a, view, s, q, out, lse).run();
}

}  // namespace kvilt::inline KVILT_ABI
