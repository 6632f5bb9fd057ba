#pragma once

#include <kvilt/attention/attend.hpp>
#include <kvilt/attention/host/mass.hpp>

#include <limits>

namespace kvilt::inline KVILT_ABI {
namespace detail {

/// No two items with queries are of one sequence: both would add to its sums.
inline void check_columns(const step& s) {
  const int twice = named_twice(std::size_t(s.size),
                                [&](std::size_t i) { return s.items[i].queries == 0 ? -1 : s.items[i].sequence; });
  expects(twice < 0, "sequence ", twice, " is in the step twice with queries; column sums are those of one item");
}

/// There is a number for each key of the sequences that ask.
template <class View>
void check_mass(const View& view, const step& s, const rows<float>& mass) {
  expects(mass.heads == view.kv_heads(), "column sums are of ", mass.heads, " heads; the cache has ", view.kv_heads());
  idx sequences = 0;
  for (int i = 0; i < s.size; ++i) {
    const step_item& item = s.items[i];
    if (item.queries == 0) continue;
    sequences = larger(sequences, idx(item.sequence) + 1);
    for (int head = 0; head < view.kv_heads(); ++head) {
      idx keys = 0;
      view.each([&](const auto& seg) { keys += seg.retention.count(item.n, item.sequence, head); });
      expects(keys <= mass.dim, "sequence ", item.sequence, " has ", keys,
              " keys; there is room for the column sums of ", mass.dim);
    }
  }
  check_memory(mass.data, sequences, "the column sums of ", sequences, " sequences");
  check_written("column sums", mass, sequences);
}

template <class View, class Variant, class Positions, class Q>
void check_columns_of(const host& exec, const attention<Variant, Positions>& a, const View& view, const step& s,
                      const rows<Q>& q, const natural_lse& lse, const rows<float>& mass, int last) {
  expects(last >= 0, "the last ", last, " queries count; 0 or more are needed");
  check_asked(exec, a, view, s, q);
  check_written(lse, s.q_rows, q.heads);
  check_columns(s);
  check_mass(view, s, mass);
}

/// Column sums of one call: a leaf of keys of one sequence and KV head is one worker's affair.
template <class View, class Variant, class Positions, class Q>
class host_mass {
 public:
  host_mass(const host& exec, const attention<Variant, Positions>& a, const View& view, const step& s, const rows<Q>& q,
            natural_lse lse, const rows<float>& mass, int last)
      : kernels_(kernels_for(exec.instructions())),
        attention_(a),
        view_(view),
        step_(s),
        q_(q),
        lse_(lse),
        mass_(mass),
        last_(last) {}

  void run(const host& exec) const {
    idx leaves = 1;
    for (int i = 0; View::ordered && i < step_.size; ++i)
      leaves = larger(leaves, ceil_div(step_.items[i].n.after, host_tile::leaf));
    const idx heads = view_.kv_heads();
    exec.for_each(step_.size * heads * leaves, [&](idx task, int worker) {
      const idx leaf = task % leaves;
      const step_item& item = step_.items[task / leaves / heads];
      const position_range keys{leaf * host_tile::leaf, View::ordered ? (leaf + 1) * host_tile::leaf : no_end};
      if (item.queries > 0 && keys.first < item.n.after) add(item, int(task / leaves % heads), keys, worker);
    });
  }

 private:
  void add(const step_item& item, int head, position_range keys, int worker) const {
    const int group = q_.heads / view_.kv_heads(), end = item.queries * group;
    for (int first = (item.queries - int(smaller(last_, item.queries))) * group; first < end;
         first += host_tile::rows) {
      float* const scratch = worker_scratch(step_, worker, view_.k_dim(), view_.v_dim());
      host_block<View, Variant, Positions, tile_mass> block(
          kernels_, view_, attention_.variant(), attention_.positions(), attention_.scale(view_.k_dim()), item, head,
          group, reinterpret_cast<unsigned char*>(scratch));
      const int count = int(smaller(host_tile::rows, end - first));
      block.seat(first, count);
      block.load(q_);
      block.tile().add_to(mass_.at(item.sequence, head));
      for (int r = 0; r < count; ++r)
        block.tile().lse(r) = lse_.at(item.q_row + block.row(r).q_index, block.row(r).q_head);
      block.pass(view_, keys);
    }
  }

  const host_kernels& kernels_;
  const attention<Variant, Positions>& attention_;
  const View& view_;
  const step& step_;
  const rows<Q>& q_;
  natural_lse lse_;
  const rows<float>& mass_;
  int last_;
};

}  // namespace detail

/// Every query of an item, for `column_mass`.
inline constexpr int all_queries = std::numeric_limits<int>::max();

/// Adds to `mass` how much of their attention the step's queries give to each key: the sums of e^(score - log-sum-exp)
/// over the queries and over the query heads of the key's KV head, the columns of the softmax's matrix. Scores by which
/// tokens are kept are made of them: running sums over all queries (H2O; Z. Zhang et al., 2023), the newest query alone
/// (TOVA; M. Oren et al., 2024), the last queries of a prompt (SnapKV; Y. Li et al., 2024).
///
/// `a`, `view`, `s` and `q` are what attention was called with, `lse` is what it gave: natural, [s.q_rows][q heads]. Of
/// each sequence the last `last` queries count. mass: [rows of the view's tables][kv heads][keys], a key being numbered
/// by its place in the cache: how many live rows of its sequence and head come before it, which is its position where all
/// tokens are kept. Other numbers are left as they are. A query that sees no key, of log-sum-exp -infinity, adds nothing;
/// a sink's share is nobody's. K is read once for every `host_tile::rows` query rows, V not at all.
/// Throws `invalid_argument` before anything is written. Bits depend neither on pages, nor on neighbours, nor on the
/// number of workers.
template <class Variant, class Positions, host_view View, class Q>
void column_mass(const host& exec, const attention<Variant, Positions>& a, const View& view, const step& s, rows<Q> q,
                 natural_lse lse, rows<float> mass, int last = all_queries) {
  detail::check_columns_of(exec, a, view, s, q, lse, mass, last);
  detail::host_mass(exec, a, view, s, q, lse, mass, last).run(exec);
}

}  // namespace kvilt::inline KVILT_ABI
