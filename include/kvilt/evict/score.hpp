#pragma once

#include <kvilt/attention/column_mass.hpp>

#include <concepts>
#include <cstddef>
#include <span>

namespace kvilt::inline KVILT_ABI {

/// What a score is asked about: the rows of one sequence in one layer, numbered in each KV head by their places in the
/// cache.
struct asked_rows {
  lengths n;                         // as `cache::holds` gives them
  int sequence = 0;                  // its row in the view's tables, `cache::row`
  int layer = 0;                     // of the cache
  idx count = 0;                     // rows of each KV head; the most of any, where they have kept different numbers
  int group = 1;                     // query heads of a KV head
  idx queries = 0;                   // tokens whose queries are in the column sums
  rows<const float> mass;            // [1][kv heads][count]: the column sums that the score has asked for
  std::span<const idx> counts = {};  // [kv heads]: rows of each; empty: `count`

  idx rows_of(int head) const { return counts.empty() ? count : counts[std::size_t(head)]; }
};

/// A score says of each row how much it is worth to keep: the higher, the longer it stays. A plain struct:
///   `int queries() const`             of how many of a step's last queries it wants the column sums: `all_queries`, or 0
///   `static constexpr bool running`   sums go on from step to step, or are those of the last step alone
///   `void operator()(view, const asked_rows&, rows<float> scores) const`
///                                     writes [1][kv heads][count] numbers; those behind a head's own rows are not read
template <class S, class View>
concept row_score = requires(const S s, const View& view, const asked_rows& asked, rows<float> scores) {
  { s.queries() } -> std::same_as<int>;
  { S::running } -> std::convertible_to<bool>;
  s(view, asked, scores);
};

/// `body(segment, place, position, i)` for each row of one sequence and KV head, in the order of their places.
template <host_view View, class Body>
void each_row(const View& view, const lengths& n, int sequence, int head, Body&& body) {
  idx before = 0;
  view.each([&](const auto& seg) {
    const idx count = seg.retention.count(n, sequence, head);
    for (idx i = 0; i < count; ++i) {
      const kept_row kept = seg.retention.at(n, sequence, head, i);
      body(seg, seg.layout.locate(sequence, head, kept.slot), kept.position, before + i);
    }
    before += count;
  });
}

}  // namespace kvilt::inline KVILT_ABI
