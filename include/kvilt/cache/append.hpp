#pragma once

#include <kvilt/cache/check.hpp>
#include <kvilt/cache/step.hpp>
#include <kvilt/cache/view.hpp>
#include <kvilt/position/rope.hpp>

namespace kvilt::inline KVILT_ABI {
namespace detail {

template <class Segment>
inline constexpr bool is_tile = Segment::k_format::rows > 1 || Segment::v_format::rows > 1;

/// Where rows of one sequence and KV head go in one step.
template <class View>
struct row_writer {
  const View& view;
  const step_item& item;
  int head;

  /// Encodes one row of K and one of V, in the view's rotations, where the step's lengths say that `position` lies.
  /// Tile formats take no single rows: their tokens come through `flush`.
  void put(idx position, const float* k, const float* v) const {
    view.each([&](const auto& seg) {
      if constexpr (is_tile<std::remove_cvref_t<decltype(seg)>>) return;
      const idx slot = seg.retention.slot(item.n, item.sequence, head, position);
      if (slot < 0) return;
      const place p = seg.layout.locate(item.sequence, head, slot);
      if (p.page < 0) return;
      seg.k.encode(k, seg.k_row(p, head));
      seg.v.encode(v, seg.v_row(p, head));
    });
  }

  /// Copies the tokens that leave a 16-bit tail in this step to the segment that holds them now. The tail has room for
  /// them and the step's own rows at once, so doing it again gives the same bytes. scratch: [tile][k_dim + v_dim]
  void flush(float* scratch) const {
    view.each([&](const auto& tail) {
      if constexpr (requires { tail.retention.leaving(item.n); }) {
        const position_range leaving = tail.retention.leaving(item.n);
        view.each([&](const auto& to) {
          if constexpr (!requires { to.retention.leaving(item.n); }) move(tail, to, leaving, scratch);
        });
      }
    });
  }

 private:
  template <class Tail, class To>
  void move(const Tail& tail, const To& to, position_range leaving, float* scratch) const {
    constexpr int k_rows = To::k_format::rows, v_rows = To::v_format::rows, tile = k_rows > v_rows ? k_rows : v_rows;
    static_assert(tile % k_rows == 0 && tile % v_rows == 0 && tile <= host_tile::tokens,
                  "kvilt: tiles of K and V must divide each other and have at most 64 rows");
    float* k = scratch;
    float* v = scratch + idx(tile) * to.k.dim();
    for (idx first = leaving.first; first + tile <= leaving.last; first += tile) {
      const idx slot = to.retention.slot(item.n, item.sequence, head, first);
      if (slot < 0) continue;
      for (int i = 0; i < tile; ++i) {
        const place from = tail.layout.locate(item.sequence, head, tail.retention.slot_of(first + i));
        decode_row(tail.k, tail.k_row(from, head), k + idx(i) * to.k.dim());
        decode_row(tail.v, tail.v_row(from, head), v + idx(i) * to.v.dim());
      }
      const place p = to.layout.locate(item.sequence, head, slot);
      if (p.page < 0) continue;
      for (int i = 0; i < tile; i += k_rows)
        to.k.encode(k + idx(i) * to.k.dim(), to.k_row({p.page, p.row + i, 1}, head));
      for (int i = 0; i < tile; i += v_rows)
        to.v.encode(v + idx(i) * to.v.dim(), to.v_row({p.page, p.row + i, 1}, head));
    }
  }
};

template <class T>
void load_row(const T* from, int dim, float* to) {
  for (int i = 0; i < dim; ++i) to[i] = load(from[i]);
}

/// Scratch of one worker.
inline float* worker_scratch(const step& s, int worker, int k_dim, int v_dim) {
  return reinterpret_cast<float*>(s.scratch + std::size_t(worker) * host_tile::worker_bytes(k_dim, v_dim));
}

/// Rows of K and V are as many and as long as the view's. Where V lies in K's records nobody looks at `v`.
template <class View, class Step, class K, class V>
void check_given(const View& view, const Step& s, rows<const K> k, [[maybe_unused]] rows<const V> v) {
  if constexpr (View::values_in_keys) {
    expects(k.heads == view.kv_heads() && k.dim == view.k_dim(), "K has ", k.heads, " heads of ", k.dim,
            " numbers; the cache has ", view.kv_heads(), " of ", view.k_dim());
    check_memory(k.data, s.kv_rows, "K of ", s.kv_rows, " rows");
  } else {
    expects(k.heads == view.kv_heads() && v.heads == view.kv_heads(), "K has ", k.heads, " and V ", v.heads,
            " heads; the cache has ", view.kv_heads());
    expects(k.dim == view.k_dim() && v.dim == view.v_dim(), "rows of K have ", k.dim, " and of V ", v.dim,
            " numbers; the cache's have ", view.k_dim(), " and ", view.v_dim());
    check_memory(k.data && v.data ? k.data : nullptr, s.kv_rows, "K or V of ", s.kv_rows, " rows");
  }
}

template <class View, class K, class V>
void check_append(const host& exec, const View& view, const step& s, rows<const K> k, rows<const V> v) {
  check_step(s);
  check_given(view, s, k, v);
  check_view(view);
  check_records(view);
  check_scratch(exec, s, view.k_dim(), view.v_dim());
  check_capacity(view, s);
  check_reachable(view, s, [](const step_item& item) { return position_range{item.n.before, item.n.after}; });
  view.each([&](const auto& seg) {
    if constexpr (is_tile<std::remove_cvref_t<decltype(seg)>>)
      for (int i = 0; i < s.size; ++i)
        expects(s.items[i].new_tokens == 0 ||
                    seg.retention.slot(s.items[i].n, s.items[i].sequence, 0, s.items[i].n.after - 1) < 0,
                "sequence ", s.items[i].sequence, " appends to a tile format; its tokens come through a 16-bit tail");
  });
}

inline void check_rope(const rope& turn, int k_dim) {
  check_magnitude(double(turn.magnitude));
  expects(turn.dims == 0 || turn.turns != nullptr, "RoPE over ", turn.dims, " numbers has no frequencies");
  expects(turn.dims >= 0 && turn.dims <= k_dim && turn.dims % 2 == 0, "RoPE over ", turn.dims, " numbers of rows of ",
          k_dim);
  expects(turn.first >= 0 && turn.first <= k_dim - turn.dims, "RoPE over ", turn.dims, " numbers from number ",
          turn.first, " on of rows of ", k_dim);
}

/// RoPE leaves numbers of K that are V's alone.
template <class View>
void check_rope_of(const View& view, const rope& turn) {
  check_rope(turn, view.k_dim());
  expects(!View::values_in_keys || turn.dims == 0 || turn.first >= view.v_dim(), "RoPE over ", turn.dims,
          " numbers from number ", turn.first, " on would turn V, which is the first ", view.v_dim(), " of K's");
}

template <class Step, class Q>
void check_queries(const Step& s, const rows<Q>& q, int k_dim) {
  expects(q.dim == k_dim, "rows of Q have ", q.dim, " numbers; the cache's keys have ", k_dim);
  check_memory(q.data, s.q_rows, "Q of ", s.q_rows, " rows");
}

}  // namespace detail

/// RoPE on the step's queries, in place: q [s.q_rows][q heads][k_dim].
template <class Q>
void rotate_queries(const host& exec, const step& s, rows<Q> q, int k_dim, const rope& turn) {
  detail::check_step(s);
  detail::check_rope(turn, k_dim);
  detail::check_scratch(exec, s, k_dim, 0);
  detail::check_queries(s, q, k_dim);
  detail::check_written("rows of Q", q, s.q_rows);
  exec.for_each(s.size, [&](idx i, int worker) {
    const step_item& item = s.items[i];
    float* row = detail::worker_scratch(s, worker, k_dim, 0);
    for (int j = 0; j < item.queries; ++j)
      for (int head = 0; head < q.heads; ++head) {
        Q* const at = q.at(item.q_row + j, head);
        detail::load_row(at + turn.first, turn.dims, row + turn.first);
        turn.apply(row, s.rope_positions ? s.rope_positions[item.q_row + j] : item.query_position(j));
        for (int d = turn.first; d < turn.first + turn.dims; ++d) store(at[d], row[d]);
      }
  });
}

/// Writes the step's new K and V: RoPE on K, rotation, quantisation, scatter; and moves what leaves a 16-bit tail into
/// the body. k: [s.kv_rows][kv heads][k_dim], v: [s.kv_rows][kv heads][v_dim]; neither is changed,
/// and v is not read where V is a part of K's records.
/// Throws `invalid_argument` before anything is written. Bits do not depend on the number of workers. Done again in the
/// same step it writes the same bytes.
template <host_view View, class K, class V>
void append(const host& exec, const View& view, const step& s, rows<K> k, rows<V> v, const rope& turn) {
  detail::check_append(exec, view, s, rows<const K>{k.data, k.token_stride, k.head_stride, k.heads, k.dim},
                       rows<const V>{v.data, v.token_stride, v.head_stride, v.heads, v.dim});
  detail::check_rope_of(view, turn);
  const int heads = view.kv_heads(), k_dim = view.k_dim(), v_dim = view.v_dim();
  exec.for_each(idx(s.size) * heads, [&](idx task, int worker) {
    const step_item& item = s.items[task / heads];
    const int head = int(task % heads);
    float* k_row = detail::worker_scratch(s, worker, k_dim, v_dim);
    float* v_row = k_row + k_dim;
    const detail::row_writer<View> writer{view, item, head};
    writer.flush(k_row);
    for (int i = 0; i < item.new_tokens; ++i) {
      const idx row = item.kv_row + i, position = item.n.before + i;
      detail::load_row(k.at(row, head), k_dim, k_row);
      if constexpr (!View::values_in_keys) detail::load_row(v.at(row, head), v_dim, v_row);
      turn.apply(k_row, s.rope_positions ? s.rope_positions[row] : position);
      View::k_rotation::forward(k_row, k_dim);
      if constexpr (!View::values_in_keys) View::v_rotation::forward(v_row, v_dim);
      writer.put(position, k_row, v_row);
    }
  });
}

/// The same for keys that RoPE has been applied to, or that need none.
template <host_view View, class K, class V>
void append(const host& exec, const View& view, const step& s, rows<K> k, rows<V> v) {
  append(exec, view, s, k, v, rope{});
}

/// The same for a view in which V is a part of K's records; RoPE may turn the numbers of K that are not V.
template <host_view View, class K>
void append(const host& exec, const View& view, const step& s, rows<K> k,
            const rope& turn = {}) requires(View::values_in_keys) {
  append(exec, view, s, k, rows<K>{}, turn);
}

/// The same, and RoPE applied to q in place: [s.q_rows][q heads][k_dim]; done again it would turn q again.
template <host_view View, class Q, class K, class V>
void append(const host& exec, const View& view, const step& s, rows<Q> q, rows<K> k, rows<V> v, const rope& turn) {
  detail::check_queries(s, q, view.k_dim());
  detail::check_written("rows of Q", q, s.q_rows);
  append(exec, view, s, k, v, turn);
  rotate_queries(exec, s, q, view.k_dim(), turn);
}

}  // namespace kvilt::inline KVILT_ABI
