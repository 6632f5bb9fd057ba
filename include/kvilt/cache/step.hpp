#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/executor.hpp>
#include <kvilt/core/given.hpp>
#include <kvilt/core/math.hpp>
#include <kvilt/core/types.hpp>

#include <cstddef>
#include <span>

namespace kvilt::inline KVILT_ABI {

/// One sequence's part of a step.
struct step_item {
  int sequence = 0;    // its number in the view's tables
  int new_tokens = 0;  // rows of K and V that it appends
  int queries = 0;     // rows of Q
  idx kv_row = 0;      // its first row among the step's K and V rows
  idx q_row = 0;       // its first row among the step's Q rows
  lengths n;

  /// The position of query `i`: the step's last queries are its newest tokens.
  KVILT_HD constexpr idx query_position(int i) const { return n.after - queries + i; }
};

/// One forward pass of a batch: planned once, used by every layer. Refers to the workspace it was planned in; plain
/// data, so an engine may make or copy one by hand.
struct step {
  const step_item* items = nullptr;  // [size]
  int size = 0;
  idx q_rows = 0;  // of all items together
  idx kv_rows = 0;
  const idx* rope_positions = nullptr;  // [kv_rows], or null: positions in the text
  unsigned char* scratch = nullptr;     // shared by the verbs, one at a time
  std::size_t scratch_bytes = 0;
  std::uint64_t serial = 0;  // of the owner that planned it; 0: an engine's own
};

/// What an engine that owns its memory says of a batch; read when the step is planned, but for the positions.
struct batch {
  std::span<const int> sequences;      // rows of the view's tables
  std::span<const idx> length_before;  // tokens in the cache before the step, of each
  std::span<const int> new_tokens;     // appended by each; 0 is legal
  std::span<const int> queries = {};   // query rows of each; empty: as many as new tokens
  // Of every new token, as many as queries; empty: positions in the text. Read while the step is in use.
  std::span<const idx> rope_positions = {};
};

/// Bytes of workspace for the host's verbs: steps of up to `sequences` sequences over views whose rows have `k_dim` and
/// `v_dim` numbers, on `exec`'s workers. Throws `invalid_argument`.
inline std::size_t workspace_bytes(const host& exec, int sequences, int k_dim, int v_dim);

namespace detail {

/// Rows and tokens that the host's attention works on at a time, per worker, and what that takes.
struct host_tile {
  static constexpr int rows = 32;                  // query rows: (token, head of the group)
  static constexpr int tokens = 64;                // keys
  static constexpr idx leaf = 1024;                // positions after which partial results are added up
  static constexpr int vector = 16;                // floats of the widest vector
  static constexpr int integer_numbers = 128;      // of a row of 4-bit values at a time
  static constexpr int integer_limit = 127 * 128;  // of a query's or a weight's magnitude as an integer
  static constexpr idx line = 64;

  /// Bytes of `count` rows of `bytes` bytes, on lines of their own.
  static constexpr idx place(idx count, idx bytes) { return round_up(count * bytes, line); }

  /// Bytes of the states of `count` rows: outputs, maxima and sums.
  static constexpr idx state_bytes(idx count, idx v_dim) {
    return place(1, idx(sizeof(float)) * count * (round_up(v_dim, vector) + 2));
  }
  static constexpr std::size_t worker_bytes(int k_dim, int v_dim) {
    const idx q = round_up(k_dim, vector), v = round_up(v_dim, vector), number = sizeof(float);
    const idx queries = 2 * place(rows, q * number) + place(rows, 2 * q);
    const idx keys_and_values = place(tokens, k_dim * number) + place(tokens, v_dim * number);
    const idx scores = 3 * place(rows, tokens * number);
    const idx states = 2 * state_bytes(rows, v_dim) + place(rows, v * number);
    const idx integers = place(tokens, integer_numbers);
    return std::size_t(round_up(queries + keys_and_values + scores + states + integers, 256));
  }
  /// Room for partial results, where a step's rows are fewer than its workers and their keys are shared out.
  static constexpr std::size_t shared_bytes(int workers, int v_dim) {
    return workers > 1 ? std::size_t(8 * idx(workers) * state_bytes(rows, v_dim)) : 0;
  }
};

inline std::size_t item_bytes(idx sequences) {
  return std::size_t(round_up(sequences * idx(sizeof(step_item)), 256));
}

/// A step that the verbs may trust, also when it was made by hand.
inline void check_step(const step& s) {
  expects(s.size >= 0 && s.q_rows >= 0 && s.kv_rows >= 0, "a step has ", s.size, " sequences, ", s.q_rows,
          " rows of Q and ", s.kv_rows, " of K and V; none may be negative");
  expects(s.rope_positions == nullptr || s.q_rows == s.kv_rows, "a step of ", s.q_rows, " rows of Q and ", s.kv_rows,
          " of K and V has positions for RoPE; as many queries as tokens are needed");
  check_memory(s.items, s.size, "the list of a step's ", s.size, " sequences");
  for (int i = 0; i < s.size; ++i) {
    const step_item& item = s.items[i];
    // NOTE: batches of a fixed size are padded with sequences below 0, which have nothing.
    expects(item.sequence >= 0 || (item.queries == 0 && item.n.after == 0), "sequence ", item.sequence,
            " is negative and has ", item.n.after, " tokens and ", item.queries, " queries");
    expects(item.new_tokens >= 0 && item.queries >= 0 && item.n.before >= 0 && item.n.after >= item.n.before &&
                item.n.after < no_end && item.n.after - item.n.before == item.new_tokens,
            "sequence ", item.sequence, " goes from ", item.n.before, " to ", item.n.after, " tokens with ",
            item.new_tokens, " new ones and ", item.queries, " queries");
    expects(item.kv_row >= 0 && item.kv_row <= s.kv_rows - item.new_tokens && item.q_row >= 0 &&
                item.q_row <= s.q_rows - item.queries,
            "sequence ", item.sequence, " has ", item.new_tokens, " rows of K and V from ", item.kv_row, " on and ",
            item.queries, " of Q from ", item.q_row, " on; the step has ", s.kv_rows, " and ", s.q_rows);
  }
}

inline void check_workers(const host& exec, int k_dim, int v_dim) {
  expects(exec.workers() >= 1, "an executor of ", exec.workers(), " workers; at least 1 is needed");
  expects(k_dim >= 0 && k_dim <= most_numbers && v_dim >= 0 && v_dim <= most_numbers, "rows of ", k_dim, " and ", v_dim,
          " numbers; 0 to ", most_numbers, " are supported");
}

inline void check_scratch(const host& exec, const step& s, int k_dim, int v_dim) {
  check_workers(exec, k_dim, v_dim);
  const std::size_t need = std::size_t(exec.workers()) * host_tile::worker_bytes(k_dim, v_dim);
  expects(s.scratch_bytes >= need, "the step's workspace leaves ", s.scratch_bytes, " bytes for ", exec.workers(),
          " workers and rows of ", k_dim, " and ", v_dim, " numbers; ", need, " are needed: see workspace_bytes");
  check_memory(s.scratch, idx(need), "a step's scratch of ", s.scratch_bytes, " bytes");
}

/// Lays `items` and scratch out in a workspace.
inline step place_step(idx sequences, std::span<unsigned char> workspace, step_item*& items) {
  constexpr std::size_t line = 256;
  check_memory(workspace.data(), idx(workspace.size()), "a workspace of ", workspace.size(), " bytes");
  const std::size_t skip = (line - reinterpret_cast<std::uintptr_t>(workspace.data()) % line) % line;
  const std::size_t need = item_bytes(sequences);
  expects(workspace.size() >= skip + need, "a workspace of ", workspace.size(), " bytes; a step of ", sequences,
          " sequences needs more: see workspace_bytes");
  items = reinterpret_cast<step_item*>(workspace.data() + skip);
  step s;
  s.items = items;
  s.size = int(sequences);
  s.scratch = workspace.data() + skip + need;
  s.scratch_bytes = workspace.size() - skip - need;
  return s;
}

/// The step's next item: its rows follow those of the items before.
inline step_item next_item(step& s, int sequence, int new_tokens, int queries, lengths n) {
  const step_item item{sequence, new_tokens, queries, s.kv_rows, s.q_rows, n};
  s.kv_rows += new_tokens;
  s.q_rows += queries;
  return item;
}

/// The first sequence that two of `count` items name, or -1; `name(i)` is an item's, below 0 where it has none. NOTE:
/// without memory: sequences are marked in one range of numbers after another. They are rows of a table, so few ranges
/// have any, mostly one.
template <class Name>
int named_twice(std::size_t count, Name&& name) {
  constexpr idx range = 1 << 15;
  for (idx first = 0; first != no_end;) {
    std::uint64_t marked[range / 64] = {};
    idx next = no_end;
    for (std::size_t i = 0; i < count; ++i) {
      const idx sequence = name(i), at = sequence - first;
      if (at < 0) continue;
      if (at >= range) {
        next = smaller(next, sequence);
        continue;
      }
      const std::uint64_t bit = std::uint64_t(1) << at % 64;
      if (marked[at / 64] & bit) return int(sequence);
      marked[at / 64] |= bit;
    }
    first = next;
  }
  return -1;
}

}  // namespace detail

inline std::size_t workspace_bytes(const host& exec, int sequences, int k_dim, int v_dim) {
  detail::expects(sequences >= 0, "a workspace for steps of ", sequences, " sequences; that may not be negative");
  detail::check_workers(exec, k_dim, v_dim);
  return 256 + detail::item_bytes(sequences) +
         std::size_t(exec.workers()) * detail::host_tile::worker_bytes(k_dim, v_dim) +
         detail::host_tile::shared_bytes(exec.workers(), v_dim);
}

/// Plans a step over an engine's own memory, without a 16-bit tail. Several items may read one sequence, of which at
/// most one appends to it; a negative sequence without tokens and queries is padding. Throws `invalid_argument` before anything is written.
inline step plan(const host&, const batch& b, std::span<unsigned char> workspace) {
  const std::size_t size = b.sequences.size();
  detail::expects(b.length_before.size() == size && b.new_tokens.size() == size, "a batch of ", size, " sequences has ",
                  b.length_before.size(), " lengths and ", b.new_tokens.size(), " token counts; one of each is needed");
  detail::expects(b.queries.empty() || b.queries.size() == size, "a batch of ", size, " sequences has ",
                  b.queries.size(), " query counts; one of each or none is needed");
  for (std::size_t i = 0; i < size; ++i) {
    detail::expects(b.sequences[i] >= 0 ||
                        (b.length_before[i] == 0 && b.new_tokens[i] == 0 && (b.queries.empty() || b.queries[i] == 0)),
                    "sequence ", b.sequences[i], " is negative and has tokens or queries");
    detail::expects(b.length_before[i] >= 0 && b.new_tokens[i] >= 0, "sequence ", b.sequences[i], " has length ",
                    b.length_before[i], " and ", b.new_tokens[i], " new tokens; neither may be negative");
    detail::expects(b.length_before[i] < (idx(1) << 31) - b.new_tokens[i], "sequence ", b.sequences[i], " has length ",
                    b.length_before[i], " and ", b.new_tokens[i], " new tokens; fewer than 2^31 are supported");
    detail::expects(b.queries.empty() || b.queries[i] >= 0, "sequence ", b.sequences[i], " has ",
                    b.queries.empty() ? 0 : b.queries[i], " queries; that may not be negative");
    detail::expects(b.rope_positions.empty() || b.queries.empty() || b.queries[i] == b.new_tokens[i], "sequence ",
                    b.sequences[i], " has positions for RoPE, ", b.new_tokens[i], " new tokens and ",
                    b.queries.empty() ? 0 : b.queries[i], " queries; as many queries as tokens are needed");
  }
  const int twice =
      detail::named_twice(size, [&](std::size_t i) { return b.new_tokens[i] == 0 ? -1 : b.sequences[i]; });
  detail::expects(twice < 0, "sequence ", twice, " is in the step twice with new tokens");
  idx new_tokens = 0;
  for (const int tokens : b.new_tokens) new_tokens += tokens;
  detail::expects(b.rope_positions.empty() || idx(b.rope_positions.size()) == new_tokens, "a step of ", new_tokens,
                  " new tokens has ", b.rope_positions.size(), " positions; one of each or none is needed");
  step_item* items = nullptr;
  step s = detail::place_step(idx(size), workspace, items);
  for (std::size_t i = 0; i < size; ++i) {
    const int queries = b.queries.empty() ? b.new_tokens[i] : b.queries[i];
    const idx before = b.length_before[i], after = before + b.new_tokens[i];
    items[i] = detail::next_item(s, b.sequences[i], b.new_tokens[i], queries, {before, after, before, after});
  }
  s.rope_positions = b.rope_positions.empty() ? nullptr : b.rope_positions.data();
  return s;
}

/// Splits `tokens` into steps of at most `max_step`: `body(first, count)` for each, in order.
template <class Body>
void in_chunks(idx tokens, int max_step, Body&& body) {
  detail::expects(max_step >= 1, "steps of ", max_step, " tokens; at least 1 is needed");
  for (idx first = 0; first < tokens; first += max_step) body(first, int(smaller(max_step, tokens - first)));
}

}  // namespace kvilt::inline KVILT_ABI
