#pragma once

#include <kvilt/attention/host_block.hpp>
#include <kvilt/attention/variant.hpp>
#include <kvilt/cache/append.hpp>

#include <cmath>

namespace kvilt::inline KVILT_ABI {

/// Queries and keys count positions in the text.
struct text_positions {};

/// Sinks and window count as one text: a query that no longer sees the tokens between is turned for the sinks to the
/// distance it has in the cache (StreamingLLM). Exact, and keys stay as they were written: Q is rotated once more for
/// the segment. `turn` is the RoPE that `append` used.
struct cache_positions {
  rope turn;
};

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
  /// A query that sees no key gives 0 and -infinity. Throws `invalid_argument` before anything is written.
  /// A query's bits depend on what it sees alone: not on pages, neighbours, the step's split or the number of workers.
  /// Where it runs is `exec`'s choice: each backend has its `run_attention`.
  template <class Exec, kv_view View, class Q, class Out>
  void operator()(const Exec& exec, const View& view, const step& s, rows<Q> q, rows<Out> out,
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
void check_attention(const View& view, const step& s, const rows<Q>& q, const rows<Out>& out, natural_lse lse) {
  check_view(view);
  check_queries(s, q, view.k_dim());
  expects(q.heads >= 1 && q.heads % view.kv_heads() == 0, "Q has ", q.heads, " heads; a multiple of the cache's ",
          view.kv_heads(), " is needed");
  expects(out.heads == q.heads && out.dim == view.v_dim(), "the output has ", out.heads, " heads of ", out.dim,
          " numbers; Q has ", q.heads, " and the cache's values ", view.v_dim());
  expects(s.q_rows == 0 || out.data != nullptr, "the output of ", s.q_rows, " rows is null");
  expects(!lse || s.q_rows < 2 || lse.row_stride >= q.heads, "rows of log-sum-exps are ", lse.row_stride,
          " apart; Q has ", q.heads, " heads");
  view.each([&](const auto& seg) { check_window(seg.retention, s); });
  check_capacity(view, s);
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

}  // namespace detail

/// Attention on the host.
template <class Variant, class Positions, host_view View, class Q, class Out>
void run_attention(const host& exec, const attention<Variant, Positions>& a, const View& view, const step& s, rows<Q> q,
                   rows<Out> out, natural_lse lse) {
  detail::check_attention(view, s, q, out, lse);
  detail::check_scratch(exec, s, view.k_dim(), view.v_dim());
  if constexpr (requires { a.positions().turn; }) detail::check_rope(a.positions().turn, view.k_dim());
  detail::check_reachable(
      view, s, [&](const step_item& item) { return detail::seen_by(a.variant(), item, q.heads, view.kv_heads()); });
  const int group = q.heads / view.kv_heads();
  int most = 0;
  for (int i = 0; i < s.size; ++i) most = s.items[i].queries > most ? s.items[i].queries : most;
  const idx blocks = ceil_div(idx(most) * group, detail::host_tile::rows);
  exec.for_each(idx(s.size) * view.kv_heads() * blocks, [&](idx task, int worker) {
    const step_item& item = s.items[task / (view.kv_heads() * blocks)];
    const int head = int(task / blocks % view.kv_heads());
    const idx first = task % blocks * detail::host_tile::rows;
    const idx count = smaller(idx(item.queries) * group - first, detail::host_tile::rows);
    if (count <= 0) return;
    detail::host_block<View, Variant, Positions> block(view, a.variant(), a.positions(), a.scale(view.k_dim()), item,
                                                       head, group,
                                                       detail::worker_scratch(s, worker, view.k_dim(), view.v_dim()));
    block.load(q, int(first), int(count));
    view.each([&](const auto& seg) { block.attend(seg); });
    block.finish(out, lse);
  });
}

}  // namespace kvilt::inline KVILT_ABI
