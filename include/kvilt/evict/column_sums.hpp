#pragma once

#include <kvilt/attention/column_mass.hpp>
#include <kvilt/cache/keep.hpp>

#include <algorithm>
#include <span>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// The column sums of a cache's rows, in every layer, kept beside it over its steps: numbered as the rows are, which have
/// to move when theirs do. By the sequences' rows in the views' tables, `cache::row`.
class column_sums {
 public:
  /// For as many sequences as the cache has, of up to `most_rows` rows each.
  column_sums(int layers, int kv_heads, int sequences, idx most_rows)
      : kv_heads_(kv_heads), sequences_(sequences), most_rows_(most_rows) {
    detail::expects(layers >= 1 && kv_heads >= 1 && sequences >= 1 && most_rows >= 0, "column sums of ", layers,
                    " layers, ", kv_heads, " KV heads, ", sequences, " sequences and ", most_rows,
                    " rows; 1 or more of each and no negative number of rows are needed");
    mass_.resize(std::size_t(layers) * std::size_t(sequences) * std::size_t(kv_heads) * std::size_t(most_rows));
    queries_.resize(std::size_t(layers) * std::size_t(sequences));
  }

  int layers() const { return int(queries_.size()) / sequences_; }
  int kv_heads() const { return kv_heads_; }
  int sequences() const { return sequences_; }
  idx most_rows() const { return most_rows_; }
  /// One layer's, for `column_mass`: [sequences][kv heads][rows].
  rows<float> of(int layer) { return packed_rows(mass_.data() + at(layer, 0), kv_heads_, int(most_rows_)); }
  /// Those of one sequence: [1][kv heads][rows].
  rows<const float> of(int layer, int sequence) const {
    return packed_rows(mass_.data() + at(layer, sequence), kv_heads_, int(most_rows_));
  }
  /// Tokens whose queries are in them.
  idx queries(int layer, int sequence) const { return queries_[number(layer, sequence)]; }

  /// Adds what the last `last` queries of each of a step's sequences give: after the layer's attention, with what that
  /// was called with and its log-sum-exps. `anew`: what there was of these sequences is forgotten first. What was added
  /// stays where the step is cancelled then: a copy made before is without.
  template <class Variant, class Positions, host_view View, class Q>
  void add(const host& exec, const attention<Variant, Positions>& a, int layer, const View& view, const step& s,
           rows<Q> q, natural_lse lse, int last = all_queries, bool anew = false) {
    detail::expects(layer >= 0 && layer < layers(), "layer ", layer, "; there are column sums of ", layers());
    for (int i = 0; i < s.size; ++i)
      detail::expects(s.items[i].queries == 0 || s.items[i].sequence < sequences_, "sequence ", s.items[i].sequence,
                      "; there are column sums of ", sequences_);
    detail::check_columns_of(exec, a, view, s, q, lse, of(layer), last);
    for (int i = 0; anew && i < s.size; ++i)
      if (s.items[i].queries > 0) clear(layer, s.items[i].sequence);
    detail::host_mass(exec, a, view, s, q, lse, of(layer), last).run(exec);
    for (int i = 0; i < s.size; ++i)
      if (s.items[i].queries > 0) queries_[number(layer, s.items[i].sequence)] += smaller(last, s.items[i].queries);
  }

  /// Rows of a sequence have moved as `cache::keep` moves them. places: [layers][kv heads][n], going up and below
  /// `most_rows`
  void keep(int sequence, std::span<const int> places) {
    check(sequence);
    detail::expects(places.size() % lists() == 0, "sequence ", sequence, " keeps ", places.size(), " rows in ",
                    layers(), " layers of ", kv_heads_, " KV heads; the same number in each is needed");
    keep(sequence, places, std::vector<int>(lists(), int(places.size() / lists())));
  }
  /// The same of lists of sizes: [layers][kv heads] rows.
  void keep(int sequence, std::span<const int> places, std::span<const int> sizes) {
    check(sequence);
    detail::check_sizes(sequence, idx(lists()), kv_heads_, idx(places.size()), sizes);
    each_list(places, sizes, [&](std::size_t, std::span<const int> list) {
      for (std::size_t i = 0; i < list.size(); ++i) {
        const int before = i == 0 ? -1 : list[i - 1];
        detail::expects(list[i] > before && list[i] < most_rows_, "sequence ", sequence, " keeps row ", list[i],
                        " after ", before, "; rows going up to less than ", most_rows_, " are needed");
      }
    });
    each_list(places, sizes, [&](std::size_t number, std::span<const int> list) {
      float* const sums = of_list(sequence, number);
      for (std::size_t i = 0; i < list.size(); ++i) sums[i] = sums[list[i]];
      std::fill(sums + list.size(), sums + most_rows_, 0.0f);
    });
  }
  /// A sequence has been cut to so many rows.
  void truncate(int sequence, idx count) {
    check(sequence);
    detail::expects(count >= 0, "sequence ", sequence, " is cut to ", count, " rows");
    for (std::size_t list = 0; list < lists(); ++list) cut(sequence, list, count);
  }
  /// The same where heads have different numbers of rows, `cache::kept`. counts: [layers][kv heads]
  void truncate(int sequence, std::span<const idx> counts) {
    check(sequence);
    detail::expects(counts.size() == lists(), "sequence ", sequence, " is cut in ", counts.size(), " heads; there are ",
                    layers(), " layers of ", kv_heads_);
    for (const idx count : counts) detail::expects(count >= 0, "sequence ", sequence, " is cut to ", count, " rows");
    for (std::size_t list = 0; list < lists(); ++list) cut(sequence, list, counts[list]);
  }
  /// Another sequence is as `from` is.
  void copy(int from, int to) {
    check(from), check(to);
    if (from == to) return;
    for (int layer = 0; layer < layers(); ++layer) {
      std::copy_n(mass_.data() + at(layer, from), kv_heads_ * most_rows_, mass_.data() + at(layer, to));
      queries_[number(layer, to)] = queries(layer, from);
    }
  }
  /// A sequence is new.
  void clear(int sequence) {
    check(sequence);
    for (int layer = 0; layer < layers(); ++layer) clear(layer, sequence);
  }

 private:
  void check(int sequence) const {
    detail::expects(sequence >= 0 && sequence < sequences_, "sequence ", sequence, "; there are column sums of ",
                    sequences_);
  }
  std::size_t number(int layer, int sequence) const { return std::size_t(layer * sequences_ + sequence); }
  std::size_t lists() const { return std::size_t(layers()) * std::size_t(kv_heads_); }
  /// The sums of one layer's head, by its number among all.
  float* of_list(int sequence, std::size_t list) {
    return mass_.data() + at(int(list) / kv_heads_, sequence) + idx(int(list) % kv_heads_) * most_rows_;
  }
  void cut(int sequence, std::size_t list, idx count) {
    float* const sums = of_list(sequence, list);
    std::fill(sums + smaller(count, most_rows_), sums + most_rows_, 0.0f);
  }
  /// `body(number, list)` for each list of places.
  template <class Body>
  static void each_list(std::span<const int> places, std::span<const int> sizes, Body&& body) {
    for (std::size_t list = 0; list < sizes.size(); ++list) {
      body(list, places.first(std::size_t(sizes[list])));
      places = places.subspan(std::size_t(sizes[list]));
    }
  }
  idx at(int layer, int sequence) const { return idx(number(layer, sequence)) * kv_heads_ * most_rows_; }
  void clear(int layer, int sequence) {
    std::fill_n(mass_.data() + at(layer, sequence), kv_heads_ * most_rows_, 0.0f);
    queries_[number(layer, sequence)] = 0;
  }

  int kv_heads_, sequences_;
  idx most_rows_;
  std::vector<float> mass_;   // [layers][sequences][kv heads][rows]
  std::vector<idx> queries_;  // [layers][sequences]
};

}  // namespace kvilt::inline KVILT_ABI
