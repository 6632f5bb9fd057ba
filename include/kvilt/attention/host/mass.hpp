#pragma once

#include <kvilt/attention/host/softmax.hpp>

#include <algorithm>
#include <cmath>

namespace kvilt::inline KVILT_ABI::detail {

/// What rows whose log-sum-exps are known give to the tokens of one tile after another, added up by token.
class tile_mass : public tile_scores {
 public:
  static constexpr bool weighs_values = false;

  tile_mass(const host_kernels& kernels, int, host_arena& arena) : tile_scores(arena), kernels_(kernels) {}

  /// For `rows` rows; their log-sum-exps are to be set.
  void begin(int rows) { count_ = rows; }
  float& lse(int row) { return lse_[row]; }
  /// Sums are added here, by the number of the token's row.
  void add_to(float* mass) { mass_ = mass; }
  static void clear() {}

  /// Tokens [first, first + run) of the tile are live, and are the rows from `row` on.
  void take(int first, int run, idx row) {
    add(first, run);
    for (int t = 0; t < run; ++t) row_[first + t] = row + t;
  }

  void absorb() {
    if (filled() == 0) return;
    std::fill_n(sum_, host_tile::tokens, 0.0f);
    for (int r = 0; r < count_; ++r)
      if (lse_[r] != -__builtin_huge_valf()) add_row(scores_of_live(r), lse_[r]);
    for (int t = 0; t < filled(); ++t)
      if (live(t)) mass_[row_[t]] += sum_[t];
    empty();
  }

 private:
  void add_row(float* scores, float lse) {
    float maximum = lse, sum = 0, factor = 1;
    if (std::isnan(lse))
      std::fill_n(scores, host_tile::tokens, lse);
    else
      kernels_.weigh(scores, maximum, sum, factor);
    // NOTE: a score is above the log-sum-exp by rounding alone, unless it is not that of these scores.
    const float back = maximum == lse ? 1.0f : std::exp(maximum - lse);
    // NOTE: a weight of 0 stays one, also where going back is beyond all floats.
    for (int t = 0; t < host_tile::tokens; ++t) sum_[t] += scores[t] == 0 ? 0 : scores[t] * back;
  }

  const host_kernels& kernels_;
  int count_ = 0;
  float* mass_ = nullptr;
  float lse_[host_tile::rows];
  float sum_[host_tile::tokens];  // of the tile
  idx row_[host_tile::tokens];
};

}  // namespace kvilt::inline KVILT_ABI::detail
