#pragma once

#include <kvilt/cache/segment.hpp>

#include <cstdint>

namespace kvilt::inline KVILT_ABI {

/// Every token stays until `cache::keep` is told which rows do: by scores of their attention, say (evict/). In each
/// layer and KV head others may stay: as many in all, or with pages of one head (`paged_by_head`) each head its own
/// number. Keys stay as RoPE has turned them, and whoever asks for a key's position gets that in the text.
struct listed {
  static constexpr bool slides = false;
  static constexpr const char* name() { return "listed"; }
  static constexpr idx width() { return 0; }
  static constexpr int sinks() { return 0; }
};

/// Whether tokens between others may go under this rule.
template <class Rule>
inline constexpr bool evicts_tokens = std::is_same_v<Rule, listed>;

/// How much of a sequence's body is listed: of its first rows, which lie in any distance from each other, the positions
/// are on record; those behind are `evicted` tokens further on in the text than in the body.
struct listed_rows {
  std::int32_t count = 0;
  std::int32_t evicted = 0;
};

/// The rows of a body from which tokens were evicted, in the order of their positions. Positions that are on record lie
/// beside the rows, page by page, so that whoever has a page has them too.
template <class Layout>
class listed_body {
 public:
  static constexpr bool ordered = true;
  static constexpr bool slides = false;
  /// Rows that follow on each other may be far from each other in the text.
  static constexpr bool has_gaps = true;

  constexpr listed_body() = default;
  /// rows: [sequences], or by head as the layout's tables are; `positions`: of int32, a number for each head and row of
  /// each page. `sinks`: tokens that belong to the sinks' part.
  constexpr listed_body(const Layout& layout, const listed_rows* rows, const plane& positions, idx sinks)
      : layout_(layout), rows_(rows), positions_(positions), sinks_(sinks) {}

  KVILT_HD constexpr idx count(lengths n, int sequence, int head) const {
    // NOTE: who pads a batch asks of sequences below 0, which have no tokens.
    return n.body_after > sinks_ ? n.body_after - sinks_ - on_record_of(sequence, head).evicted : 0;
  }
  KVILT_HD kept_row at(lengths n, int sequence, int head, idx i) const {
    const listed_rows r = on_record_of(sequence, head);
    if (i >= r.count) return {i, sinks_ + i + r.evicted, n.body_after - sinks_ - r.evicted - i};
    const place p = layout_.locate(sequence, head, i);
    const idx position = on_record(p, head), most = smaller(smaller(p.run, r.count - i), longest_run);
    idx run = 1;
    while (run < most && on_record({p.page, p.row + int(run), 1}, head) == position + run) ++run;
    return {i, position, run};
  }
  KVILT_HD idx slot(lengths n, int sequence, int head, idx position) const {
    if (position < sinks_ || position >= n.body_after) return -1;
    const listed_rows r = on_record_of(sequence, head);
    if (position >= sinks_ + r.count + r.evicted) return position - sinks_ - r.evicted;
    const idx i = rows_before(sequence, head, position);
    return i < r.count && position_of(sequence, head, i) == position ? i : -1;
  }
  KVILT_HD static constexpr bool sees(idx, idx) { return true; }
  KVILT_HD static constexpr idx sees_from(idx) { return 0; }

  /// What is on record of a sequence's head, and where: who saves rows saves that too.
  KVILT_HD constexpr const listed_rows& on_record_of(int sequence, [[maybe_unused]] int head) const {
    if constexpr (tabled_by_head<Layout>)
      return rows_[layout_.table(sequence, head)];
    else
      return rows_[sequence];
  }
  const plane& positions() const { return positions_; }

  /// Which token is in slot `i`.
  KVILT_HD idx position_of(int sequence, int head, idx i) const {
    const listed_rows r = on_record_of(sequence, head);
    return i >= r.count ? sinks_ + i + r.evicted : on_record(layout_.locate(sequence, head, i), head);
  }
  /// How many rows that are listed are of tokens before `position`.
  KVILT_HD idx rows_before(int sequence, int head, idx position) const {
    idx low = 0;
    for (idx high = on_record_of(sequence, head).count; low < high;) {
      const idx middle = (low + high) / 2;
      const bool before = position_of(sequence, head, middle) < position;
      (before ? low : high) = before ? middle + 1 : middle;
    }
    return low;
  }
  /// Puts a row's position on record.
  void record(place p, int head, idx position) const {
    detail::write(positions_.at(p, head, p.row), std::int32_t(position));
  }
  /// The positions of one head's rows, where each sequence has a place of its own, in another sequence's.
  void copy_record(int from, int to, int head) const {
    for (idx i = 0; i < on_record_of(from, head).count; ++i)
      record(layout_.locate(to, head, i), head, on_record(layout_.locate(from, head, i), head));
  }

 private:
  static constexpr idx longest_run = 64;  // that is looked for: who reads asks again

  KVILT_HD idx on_record(place p, int head) const { return detail::read<std::int32_t>(positions_.at(p, head, p.row)); }

  Layout layout_;
  const listed_rows* rows_ = nullptr;
  plane positions_;
  idx sinks_ = 0;
};

}  // namespace kvilt::inline KVILT_ABI
