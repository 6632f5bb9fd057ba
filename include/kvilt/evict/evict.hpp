#pragma once

#include <kvilt/cache/cache.hpp>
#include <kvilt/evict/column_sums.hpp>
#include <kvilt/evict/places.hpp>
#include <kvilt/evict/score.hpp>

#include <span>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// The rows of a sequence that stay by their scores, `count` in each layer and KV head, for `cache::keep`:
/// [layers][kv heads][count]. `sums`: what the score has asked for, of all steps or of the last; `group`: query heads of a
/// KV head. Rows that the cache cannot evict, those in 16 bit, are protected besides. Throws `invalid_argument` where
/// there are not so many, or more are protected.
template <class Policy, row_score<typename cache<Policy>::view_type> Score>
std::vector<int> places_to_keep(const cache<Policy>& owner, sequence s, const Score& score, const column_sums& sums,
                                int group, idx count, protected_rows ends = {}) {
  const cache_shape& shape = owner.shape();
  const idx rows_there = owner.kept(s);
  const int row = owner.row(s), heads = shape.kv_heads;
  detail::expects(count >= 0 && count <= rows_there, "sequence ", s.slot, " has ", rows_there, " rows and is to keep ",
                  count);
  detail::expects(group >= 1, "a group of ", group, " query heads; 1 or more are needed");
  detail::expects(score.queries() == 0 || (sums.layers() == shape.layers && sums.kv_heads() == heads), "a cache of ",
                  shape.layers, " layers of ", heads, " KV heads is asked for by column sums of ", sums.layers(),
                  " of ", sums.kv_heads());
  detail::expects(score.queries() == 0 || (row < sums.sequences() && rows_there <= sums.most_rows()), "row ", row,
                  " of ", rows_there, " tokens is asked for by column sums of ", sums.sequences(), " rows of ",
                  sums.most_rows(), " tokens");
  const position_range may_go = owner.evictable(s);
  ends.first = larger(ends.first, may_go.first), ends.last = larger(ends.last, rows_there - may_go.last);
  std::vector<float> scores(std::size_t(rows_there) * std::size_t(heads));
  std::vector<int> places(std::size_t(shape.layers) * std::size_t(heads) * std::size_t(count));
  asked_rows asked{owner.holds(s), row, 0, rows_there, group, 0, {}};
  for (std::span<int> left = places; asked.layer < shape.layers; ++asked.layer) {
    if (score.queries() != 0) asked.mass = sums.of(asked.layer, row), asked.queries = sums.queries(asked.layer, row);
    score(owner.view(asked.layer), asked, packed_rows(scores.data(), heads, int(rows_there)));
    for (int head = 0; head < heads; ++head, left = left.subspan(std::size_t(count)))
      best_places(std::span(scores).subspan(std::size_t(head * rows_there), std::size_t(rows_there)), ends,
                  left.first(std::size_t(count)));
  }
  return places;
}

/// Evicts all but `count` rows of a sequence from each layer and KV head, if it has more, and moves its column sums.
/// Between steps: after each (TOVA), now and then (H2O), once after the prompt (SnapKV). Throws as `places_to_keep` and
/// `cache::keep` do, and nothing has changed. Returns whether any went.
template <class Policy, row_score<typename cache<Policy>::view_type> Score>
bool evict(const host& exec, cache<Policy>& owner, sequence s, const Score& score, column_sums& sums, int group,
           idx count, protected_rows ends = {}) {
  if (owner.kept(s) <= count) return false;
  const std::vector<int> places = places_to_keep(owner, s, score, sums, group, count, ends);
  owner.keep(exec, s, places);
  if (score.queries() != 0) sums.keep(owner.row(s), places);
  return true;
}

}  // namespace kvilt::inline KVILT_ABI
