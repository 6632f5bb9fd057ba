#pragma once

#include <kvilt/cache/cache.hpp>
#include <kvilt/evict/column_sums.hpp>
#include <kvilt/evict/places.hpp>
#include <kvilt/evict/score.hpp>

#include <algorithm>
#include <span>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// Lists of the rows that stay, for `cache::keep` by head: of each layer's KV heads, one after another.
struct rows_by_head {
  std::vector<int> places;  // each list ascending
  std::vector<int> sizes;   // [layers][kv heads]
};

namespace detail {

/// `ends`, and what a cache cannot evict besides.
template <class Policy>
protected_rows protected_in(const cache<Policy>& owner, sequence s, protected_rows ends) {
  const position_range may_go = owner.evictable(s);
  return {larger(ends.first, may_go.first), larger(ends.last, owner.kept(s, 0, 0) - may_go.last)};
}

/// `body(layer, scores)` for each layer: of each KV head the scores of its rows.
template <class Policy, class Score, class Body>
void each_scored_layer(const cache<Policy>& owner, sequence s, const Score& score, const column_sums& sums, int group,
                       Body&& body) {
  const cache_shape& shape = owner.shape();
  const idx rows_there = owner.kept(s);
  const int row = owner.row(s), heads = shape.kv_heads;
  expects(group >= 1, "a group of ", group, " query heads; 1 or more are needed");
  expects(score.queries() == 0 || (sums.layers() == shape.layers && sums.kv_heads() == heads), "a cache of ",
          shape.layers, " layers of ", heads, " KV heads is asked for by column sums of ", sums.layers(), " of ",
          sums.kv_heads());
  expects(score.queries() == 0 || (row < sums.sequences() && rows_there <= sums.most_rows()), "row ", row, " of ",
          rows_there, " tokens is asked for by column sums of ", sums.sequences(), " rows of ", sums.most_rows(),
          " tokens");
  std::vector<float> scores(std::size_t(rows_there) * std::size_t(heads));
  std::vector<idx> counts(static_cast<std::size_t>(heads));
  std::vector<std::span<const float>> of(counts.size());
  asked_rows asked{owner.holds(s), row, 0, rows_there, group, 0, {}, counts};
  for (; asked.layer < shape.layers; ++asked.layer) {
    for (int head = 0; head < heads; ++head) {
      counts[std::size_t(head)] = owner.kept(s, asked.layer, head);
      of[std::size_t(head)] = {scores.data() + head * rows_there, std::size_t(counts[std::size_t(head)])};
    }
    asked.count = *std::max_element(counts.begin(), counts.end());
    if (score.queries() != 0) asked.mass = sums.of(asked.layer, row), asked.queries = sums.queries(asked.layer, row);
    score(owner.view(asked.layer), asked, packed_rows(scores.data(), heads, int(rows_there)));
    body(asked.layer, std::span<const std::span<const float>>(of));
  }
}

}  // namespace detail

/// The rows of a sequence that stay by their scores, `count` in each layer and KV head, for `cache::keep`:
/// [layers][kv heads][count]. `sums`: what the score has asked for, of all steps or of the last; `group`: query heads of a
/// KV head. Rows that the cache cannot evict, those in 16 bit, are protected besides. Throws `invalid_argument` where
/// there are not so many, or more are protected.
template <class Policy, row_score<typename cache<Policy>::view_type> Score>
std::vector<int> places_to_keep(const cache<Policy>& owner, sequence s, const Score& score, const column_sums& sums,
                                int group, idx count, protected_rows ends = {}) {
  detail::expects(count >= 0 && count <= owner.kept(s), "sequence ", s.slot, " has ", owner.kept(s),
                  " rows and is to keep ", count);
  ends = detail::protected_in(owner, s, ends);
  std::vector<int> places(std::size_t(owner.shape().layers) * std::size_t(owner.shape().kv_heads) * std::size_t(count));
  std::span<int> left = places;
  detail::each_scored_layer(owner, s, score, sums, group, [&](int, std::span<const std::span<const float>> scores) {
    for (const std::span<const float>& of : scores) {
      best_places(of, ends, left.first(std::size_t(count)));
      left = left.subspan(std::size_t(count));
    }
  });
  return places;
}

/// The same where each head has pages of its own: `counts[layer]` rows of each KV head on average (`pyramid_counts`, or one
/// number for all), shared out over the heads by `share`. A layer that has no more keeps all.
template <class Policy, row_score<typename cache<Policy>::view_type> Score>
requires tabled_by_head<typename Policy::layout_type> rows_by_head
places_to_keep(const cache<Policy>& owner, sequence s, const Score& score, const column_sums& sums, int group,
               std::span<const idx> counts, ada_kv share, protected_rows ends = {}) {
  detail::expects(idx(counts.size()) == owner.shape().layers, "sequence ", s.slot, " is to keep rows in ",
                  counts.size(), " layers; the cache has ", owner.shape().layers);
  ends = detail::protected_in(owner, s, ends);
  rows_by_head stay;
  const auto choose = [&](int layer, std::span<const std::span<const float>> scores) {
    const std::vector<idx> of_heads = ada_counts(scores, ends, counts[std::size_t(layer)], share);
    for (std::size_t head = 0; head < scores.size(); ++head) {
      stay.sizes.push_back(int(of_heads[head]));
      stay.places.resize(stay.places.size() + std::size_t(of_heads[head]));
      best_places(scores[head], ends, std::span(stay.places).last(std::size_t(of_heads[head])));
    }
  };
  detail::each_scored_layer(owner, s, score, sums, group, choose);
  return stay;
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

/// The same by head: `counts[layer]` rows of each KV head on average.
template <class Policy, row_score<typename cache<Policy>::view_type> Score>
requires tabled_by_head<typename Policy::layout_type>
bool evict(const host& exec, cache<Policy>& owner, sequence s, const Score& score, column_sums& sums, int group,
           std::span<const idx> counts, ada_kv share, protected_rows ends = {}) {
  const rows_by_head stay = places_to_keep(owner, s, score, sums, group, counts, share, ends);
  idx had = 0;
  for (int layer = 0; layer < owner.shape().layers; ++layer)
    for (int head = 0; head < owner.shape().kv_heads; ++head) had += owner.kept(s, layer, head);
  if (had == idx(stay.places.size())) return false;
  owner.keep(exec, s, stay.places, stay.sizes);
  if (score.queries() != 0) sums.keep(owner.row(s), stay.places, stay.sizes);
  return true;
}

}  // namespace kvilt::inline KVILT_ABI
