#pragma once

#include <kvilt/cache/check.hpp>
#include <kvilt/cache/step.hpp>
#include <kvilt/cache/view.hpp>
#include <kvilt/position/rope.hpp>

namespace kvilt::inline v0 {
namespace detail {

/// The segment-independent part of `append`: where one row of floats goes.
template <class View>
struct row_writer {
  const View& view;
  const step_item& item;
  int head;

  /// Encodes one row of K and one of V, in the view's rotations, where the step's lengths say that `position` lies.
  void put(idx position, const float* k, const float* v) const {
    view.each([&](const auto& seg) {
      if constexpr (std::remove_cvref_t<decltype(seg)>::k_format::rows == 1 &&
                    std::remove_cvref_t<decltype(seg)>::v_format::rows == 1) {
        const idx slot = seg.retention.slot(item.n, item.sequence, head, position);
        if (slot < 0) return;
        const place p = seg.layout.locate(item.sequence, head, slot);
        if (p.page < 0) return;
        seg.k.encode(k, seg.k_row(p, head));
        seg.v.encode(v, seg.v_row(p, head));
      }
    });
  }

  /// Moves the tokens that leave a 16-bit tail in this step to the segment that holds them now.
  void flush(float* k, float* v) const {
    view.each([&](const auto& tail) {
      if constexpr (requires { tail.retention.leaving(item.n); }) {
        const position_range r = tail.retention.leaving(item.n);
        for (idx position = r.first; position < r.last; ++position) {
          const place p = tail.layout.locate(item.sequence, head, tail.retention.slot_of(position));
          decode_row(tail.k, tail.k_row(p, head), k);
          decode_row(tail.v, tail.v_row(p, head), v);
          put(position, k, v);
        }
      }
    });
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

template <class View, class K, class V>
void check_append(const host& exec, const View& view, const step& s, rows<const K> k, rows<const V> v) {
  expects(k.heads == view.kv_heads() && v.heads == view.kv_heads(), "K has ", k.heads, " and V ", v.heads,
          " heads; the cache has ", view.kv_heads());
  expects(s.kv_rows == 0 || (k.data != nullptr && v.data != nullptr), "K or V of ", s.kv_rows, " rows is null");
  check_scratch(exec, s, view.k_dim(), view.v_dim());
}

inline void check_rope(const rope& turn, int k_dim) {
  expects(turn.dims >= 0 && turn.dims <= k_dim && turn.dims % 2 == 0, "RoPE over ", turn.dims, " numbers of rows of ",
          k_dim);
}

}  // namespace detail

/// RoPE on the step's queries, in place: q [s.q_rows][q heads][k_dim].
template <class Q>
void rotate_queries(const host& exec, const step& s, rows<Q> q, int k_dim, const rope& turn) {
  detail::check_rope(turn, k_dim);
  detail::check_scratch(exec, s, k_dim, 0);
  detail::expects(s.q_rows == 0 || q.data != nullptr, "Q of ", s.q_rows, " rows is null");
  exec.for_each(s.size, [&](idx i, int worker) {
    const step_item& item = s.items[i];
    float* row = detail::worker_scratch(s, worker, k_dim, 0);
    for (int j = 0; j < item.queries; ++j)
      for (int head = 0; head < q.heads; ++head) {
        Q* const at = q.at(item.q_row + j, head);
        detail::load_row(at, turn.dims, row);
        turn.apply(row, s.rope_positions ? s.rope_positions[item.q_row + j] : item.query_position(j));
        for (int d = 0; d < turn.dims; ++d) store(at[d], row[d]);
      }
  });
}

/// Writes the step's new K and V: RoPE on K, rotation, quantisation, scatter; and moves what leaves a 16-bit tail into
/// the body. k: [s.kv_rows][kv heads][k_dim], v: [s.kv_rows][kv heads][v_dim]; neither is changed.
/// Throws `invalid_argument` before anything is written. Bits do not depend on the number of workers.
template <host_view View, class K, class V>
void append(const host& exec, const View& view, const step& s, rows<K> k, rows<V> v, const rope& turn) {
  detail::check_append(exec, view, s, rows<const K>{k.data, k.token_stride, k.head_stride, k.heads},
                       rows<const V>{v.data, v.token_stride, v.head_stride, v.heads});
  detail::check_rope(turn, view.k_dim());
  detail::check_reachable(view, s);
  const int heads = view.kv_heads(), k_dim = view.k_dim(), v_dim = view.v_dim();
  exec.for_each(idx(s.size) * heads, [&](idx task, int worker) {
    const step_item& item = s.items[task / heads];
    const int head = int(task % heads);
    float* k_row = detail::worker_scratch(s, worker, k_dim, v_dim);
    float* v_row = k_row + k_dim;
    const detail::row_writer<View> writer{view, item, head};
    writer.flush(k_row, v_row);
    for (int i = 0; i < item.new_tokens; ++i) {
      const idx row = item.kv_row + i, position = item.n.before + i;
      detail::load_row(k.at(row, head), k_dim, k_row);
      detail::load_row(v.at(row, head), v_dim, v_row);
      turn.apply(k_row, s.rope_positions ? s.rope_positions[row] : position);
      View::k_rotation::forward(k_row, k_dim);
      View::v_rotation::forward(v_row, v_dim);
      writer.put(position, k_row, v_row);
    }
  });
}

/// The same for keys that RoPE has been applied to, or that need none.
template <host_view View, class K, class V>
void append(const host& exec, const View& view, const step& s, rows<K> k, rows<V> v) {
  append(exec, view, s, k, v, rope{});
}

/// The same, and RoPE applied to q in place: [s.q_rows][q heads][k_dim].
template <host_view View, class Q, class K, class V>
void append(const host& exec, const View& view, const step& s, rows<Q> q, rows<K> k, rows<V> v, const rope& turn) {
  detail::expects(s.q_rows == 0 || q.data != nullptr, "Q of ", s.q_rows, " rows is null");
  append(exec, view, s, k, v, turn);
  rotate_queries(exec, s, q, view.k_dim(), turn);
}

}  // namespace kvilt::inline v0
