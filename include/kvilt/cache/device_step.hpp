#pragma once

#include <kvilt/cache/step.hpp>
#include <kvilt/cache/view.hpp>

#include <limits>

namespace kvilt::inline KVILT_ABI {
namespace detail {

/// How the device's attention over a view is cut. A unit is up to `rows` query rows of one sequence and `heads` KV heads;
/// a team of `heads` warps, one for each of these, walks the unit's keys `tokens` at a time. All units' steps lie on one
/// line, of which every team has an equal share.
struct work_shape {
  static constexpr int tokens = 16;        // keys of one step
  static constexpr int most_rows = 32;     // query rows of a unit
  static constexpr int most_heads = 4096;  // KV heads

  int rows = 0;    // query rows of a unit: 8, 16 or 32
  int heads = 0;   // KV heads of a unit, and warps of a team
  int warps = 0;   // of a block
  int blocks = 0;  // one for each multiprocessor
  int kv_heads = 0;
  fast_divisor group;                             // query heads of a KV head
  int longest = std::numeric_limits<int>::max();  // queries of an item; those with more are not on the line

  KVILT_HD constexpr int teams() const { return blocks * (warps / heads); }
  /// Is an item of so many queries on the line?
  KVILT_HD constexpr bool has(int queries) const { return std::uint32_t(queries) - 1u < std::uint32_t(longest); }
  KVILT_HD constexpr idx row_blocks(int queries) const { return ceil_div(idx(queries) * group.value(), rows); }
  KVILT_HD constexpr idx units(int queries) const { return row_blocks(queries) * (kv_heads / heads); }
};

/// Equal shares of a line: every team has `each` steps, and the first `longer` of them one more.
struct line_shares {
  idx steps = 0, each = 0, longer = 0;

  constexpr line_shares() = default;
  KVILT_HD constexpr line_shares(idx all, int teams) : steps(all), each(all / teams), longer(all % teams) {}

  /// Where a team's share begins.
  KVILT_HD constexpr idx first(idx team) const { return team * each + smaller(team, longer); }
  /// The team that has step `step`, of teams [low, high).
  KVILT_HD constexpr int owner(idx step, int low, int high) const {
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first(middle) <= step ? low : high) = middle;
    }
    return low;
  }
};

/// What a team works on at a time: steps [step, end) of a unit, whose first KV head is `head`. A row is (query, head of
/// the group).
struct unit_seat {
  int item = 0;  // number of the sequence in the step
  int head = 0;
  int first_row = 0;  // of the sequence's rows
  int rows = 0;       // of the unit
  int step = 0, end = 0;
  int steps = 0;  // of the whole unit

  /// Of rows [first, first + most) those that there are; not below 0.
  KVILT_HD constexpr int rows_from(int first, int most) const {
    const int left = rows - first;
    return left < 0 ? 0 : left < most ? left : most;
  }
};

/// A team's share of the line: so many steps, the first of them in `seat`, and that seat's item. One line of the cache: all
/// that a warp must have before it can ask for keys.
struct alignas(128) team_share {
  unit_seat seat;
  int steps = 0;
  step_item item;
};
/// A unit that teams [opener, last] have in part.
struct split_unit {
  int opener = 0, last = 0;
  unit_seat seat;
};

/// What is planned once a step, in device memory.
struct work_plan {
  work_shape shape;
  const idx* line = nullptr;          // [size + 1]: where each sequence's steps begin on the line
  const int* steps = nullptr;         // [size]: of one of its units
  const team_share* teams = nullptr;  // [teams]
  const int* splits = nullptr;        // 1: how many units are split
  const split_unit* split = nullptr;  // [teams], of which so many are there
  unsigned long long* taken =
      nullptr;  // [2]: stretches of rows that blocks have taken, and blocks that found no more; 0
};

/// Steps over one segment of a sequence. NOTE: steps begin at multiples of their tokens among the slots, so that they
/// do not straddle pages of as many.
template <kv_segment Segment>
KVILT_HD int head_steps(const Segment& seg, const lengths& n, int sequence, int head) {
  const idx count = seg.retention.count(n, sequence, head);
  if (count <= 0) return 0;
  const idx skipped = seg.retention.at(n, sequence, head, 0).slot % work_shape::tokens;
  return int(ceil_div(skipped + count, work_shape::tokens));
}
/// The most of any KV head.
template <kv_segment Segment>
KVILT_HD int segment_steps(const Segment& seg, const lengths& n, int sequence, int kv_heads) {
  constexpr bool alike = requires {
    Segment::retention_type::slides;
  };  // an interval keeps the same of every head
  int most = head_steps(seg, n, sequence, 0);
  for (int head = 1; !alike && head < kv_heads; ++head) {
    const int steps = head_steps(seg, n, sequence, head);
    most = steps > most ? steps : most;
  }
  return most;
}

}  // namespace detail

/// One forward pass of a batch whose lengths are in device memory: what `step` is to the host's verbs. Planned once, used
/// by every layer; what the host knows of it are upper bounds, so that a captured graph stays right as sequences grow,
/// shrink and end. Refers to the workspace it was planned in.
struct device_step {
  const step_item* items = nullptr;  // [size], device
  int size = 0;                      // sequences, padding included
  idx q_rows = 0;                    // of all items together, at most
  idx kv_rows = 0;
  int most_queries = 0;  // of one sequence, at most
  int most_new_tokens = 0;
  int q_heads = 0;                      // that attention's work is planned for
  const idx* rope_positions = nullptr;  // [kv_rows], device, or null: positions in the text
  detail::work_plan work;
  unsigned char* scratch = nullptr;  // partial results
  std::size_t scratch_bytes = 0;
  std::uint64_t serial = 0;  // of the owner that planned it; 0: an engine's own
};

/// What an engine that owns its memory says of a batch: arrays in device memory, read when the step is planned and at
/// every replay of a graph in which it was, and what the host knows: upper bounds.
struct device_batch {
  int size = 0;                         // sequences, padding included
  const int* sequences = nullptr;       // [size]: rows of the view's tables; negative: padding
  const int* length_before = nullptr;   // [size]: tokens in the cache before the step
  const int* new_tokens = nullptr;      // [size]; 0 is legal
  const int* queries = nullptr;         // [size], or null: as many as new tokens, as `append` takes them that turns Q
  const idx* rope_positions = nullptr;  // [new tokens], or null: positions in the text
  int most_new_tokens = 1;              // of one sequence, at most
  int most_queries = 1;
  idx kv_rows = 0;  // new tokens of all sequences, at most; 0: size x most_new_tokens
  idx q_rows = 0;   // 0: size x most_queries
  int q_heads = 0;
};

}  // namespace kvilt::inline KVILT_ABI
