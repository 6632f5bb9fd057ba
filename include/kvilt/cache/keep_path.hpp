#pragma once

#include <kvilt/cache/check.hpp>
#include <kvilt/cache/copy.hpp>
#include <kvilt/cache/step.hpp>
#include <kvilt/cache/view.hpp>

#include <span>

namespace kvilt::inline KVILT_ABI {
namespace detail {

template <class A, class B>
inline constexpr bool same_rows =
    std::is_same_v<typename A::k_format, typename B::k_format>&&
            std::is_same_v<typename A::v_format, typename B::v_format>&& A::k_format::rows == 1 &&
    A::v_format::rows == 1;

/// Moves rows of one sequence and KV head within a step.
template <class View>
struct row_mover {
  const View& view;
  const step_item& item;
  int head;

  /// Are both rows kept, in the same formats, in records of their own?
  bool can_move(int from, int to) const {
    bool found = false;
    pair(from, to, [&](const auto&...) { found = true; });
    return found;
  }
  void move(int from, int to) const {
    pair(from, to,
         [&](const auto& source, place p, const auto& target, place q) { copy_row(source, p, target, q, head); });
  }

 private:
  template <class Body>
  void pair(int from, int to, Body&& body) const {
    at(from, [&](const auto& source, place p) {
      at(to, [&](const auto& target, place q) {
        if constexpr (same_rows<std::remove_cvref_t<decltype(source)>, std::remove_cvref_t<decltype(target)>>)
          body(source, p, target, q);
      });
    });
  }
  template <class Body>
  void at(int row, Body&& body) const {
    view.each([&](const auto& seg) {
      const idx slot = seg.retention.slot(item.n, item.sequence, head, item.n.before + row);
      if (slot < 0) return;
      const place p = seg.layout.locate(item.sequence, head, slot);
      if (p.page >= 0) body(seg, p);
    });
  }
};

/// `body(i, path)` for each of the step's sequences.
template <class Body>
void each_path(const step& s, std::span<const int> nodes, std::span<const int> accepted, Body&& body) {
  std::size_t first = 0;
  for (int i = 0; i < s.size; ++i) {
    const std::size_t count = std::size_t(accepted[std::size_t(i)]);
    body(i, nodes.subspan(first, count));
    first += count;
  }
}

inline void check_paths(const step& s, std::span<const int> nodes, std::span<const int> accepted) {
  expects(accepted.size() == std::size_t(s.size), "a step of ", s.size, " sequences has ", accepted.size(),
          " accepted counts; one of each is needed");
  idx sum = 0;
  for (int i = 0; i < s.size; ++i) {
    const int count = accepted[std::size_t(i)];
    expects(count >= 0 && count <= s.items[i].new_tokens, "sequence ", s.items[i].sequence, " accepts ", count, " of ",
            s.items[i].new_tokens, " tokens");
    sum += count;
  }
  expects(idx(nodes.size()) == sum, "paths have ", nodes.size(), " nodes; ", sum, " are accepted");
  each_path(s, nodes, accepted, [&](int i, std::span<const int> path) {
    int last = -1;
    for (const int node : path) {
      expects(node > last && node < s.items[i].new_tokens, "sequence ", s.items[i].sequence, " has node ", node,
              " after ", last, " in its path; nodes of ", s.items[i].new_tokens, " going up are needed");
      last = node;
    }
  });
}

}  // namespace detail

/// Keeps one path of each sequence's tree of drafts: of the rows that the step has appended, those that `nodes` names
/// become the first, byte for byte, as if they alone had been appended; then `commit(step, accepted)`.
/// `accepted`: [s.size] nodes of each sequence's path, 0 for none. `nodes`: the paths one after another, each of rows
/// among its sequence's new tokens, going up, as any order does in which a child comes after its parent.
///
/// For every layer, after the step's last attention there, and once: a second time would move rows that have moved.
/// `append` writes the tree anew, so the two may be repeated together, and `cancel` forgets all. Positions for RoPE must
/// have been a node's depth (`rope_positions`), so that they are right where the rows end up.
/// Throws `invalid_argument` before anything is written; also where a row would pass between formats, which is only
/// among a sequence's first tokens: sinks that are kept in another format than the rows behind them.
template <host_view View>
void keep_path(const host& exec, const View& view, const step& s, std::span<const int> nodes,
               std::span<const int> accepted) {
  const int heads = view.kv_heads();
  detail::check_step(s);
  detail::check_view(view);
  detail::check_records(view);
  detail::check_capacity(view, s);
  detail::check_paths(s, nodes, accepted);
  detail::each_path(s, nodes, accepted, [&](int i, std::span<const int> path) {
    const step_item& item = s.items[i];
    for (int j = 0; j < int(path.size()); ++j)
      for (int head = 0; head < heads && path[std::size_t(j)] != j; ++head)
        detail::expects(detail::row_mover<View>{view, item, head}.can_move(path[std::size_t(j)], j), "sequence ",
                        item.sequence, ": token ", item.n.before + path[std::size_t(j)], " does not become token ",
                        item.n.before + j, "; both must be kept, and in the same token formats");
  });
  exec.for_each(heads, [&](idx head, int) {
    detail::each_path(s, nodes, accepted, [&](int i, std::span<const int> path) {
      const detail::row_mover<View> rows{view, s.items[i], int(head)};
      // NOTE: nodes go up, so a row is read before another takes its place.
      for (int j = 0; j < int(path.size()); ++j)
        if (path[std::size_t(j)] != j) rows.move(path[std::size_t(j)], j);
    });
  });
}

}  // namespace kvilt::inline KVILT_ABI
