#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/floats.hpp>
#include <kvilt/core/types.hpp>
#include <kvilt/position/rope.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// Mean and covariance of one sequence's queries, of each layer and query head: before RoPE, so that those to come are
/// like them, and turned by RoPE to the positions where these will be. What `expected_attention` is made of.
class query_moments {
 public:
  /// Throws `invalid_argument` for less than one of each.
  query_moments(int layers, int q_heads, int dim) : layers_(layers), heads_(q_heads), dim_(dim) {
    detail::expects(layers >= 1 && q_heads >= 1 && dim >= 1, "moments of ", layers, " layers, ", q_heads,
                    " query heads and ", dim, " numbers; 1 or more of each are needed");
    count_.resize(std::size_t(layers));
    sums_.resize(std::size_t(layers) * list());
    expected_.resize(sums_.size());
  }

  int layers() const { return layers_; }
  int heads() const { return heads_; }
  int dim() const { return dim_; }
  /// Tokens whose queries are in them.
  idx queries(int layer) const { return count_[std::size_t(layer)]; }

  /// Adds a step's queries in one layer, q [tokens][query heads][dim], that RoPE has not turned yet.
  template <class Q>
  void add(int layer, rows<Q> q, int tokens) {
    check(layer);
    detail::expects(q.heads == heads_ && q.dim == dim_, "queries of ", q.heads, " heads of ", q.dim,
                    " numbers; the moments are of ", heads_, " of ", dim_);
    std::vector<double> x(static_cast<std::size_t>(dim_));
    for (int head = 0; head < heads_; ++head) {
      double* const sums = &sums_[at(layer, head)];
      for (int token = 0; token < tokens; ++token) {
        for (int i = 0; i < dim_; ++i) x[std::size_t(i)] = double(load(q.at(token, head)[i]));
        double* product = sums + dim_;
        for (int i = 0; i < dim_; ++i) {
          sums[i] += x[std::size_t(i)];
          for (int j = 0; j < dim_; ++j) *product++ += x[std::size_t(i)] * x[std::size_t(j)];
        }
      }
    }
    count_[std::size_t(layer)] += tokens;
  }

  /// What a layer's queries at positions [first, first + count) are expected to be: the mean m and the covariance C of
  /// those that were added become R m and R C R^T, R the mean of RoPE's turns at these positions. Throws
  /// `invalid_argument` where none was added, or `count` is below 1.
  void expect(int layer, const rope& turn, idx first, idx count) {
    check(layer);
    detail::expects(queries(layer) > 0 && count >= 1, "layer ", layer, " has had ", queries(layer), " queries, and ",
                    count, " are to come; 1 or more of each are needed");
    std::vector<double> cosines(std::size_t(turn.dims / 2)), sines(cosines.size());
    for (idx t = first; t < first + count; ++t)
      for (std::size_t i = 0; i < cosines.size(); ++i) {
        float sine, cosine;
        turn.sine_cosine_of(int(i), t, sine, cosine);
        cosines[i] += double(turn.magnitude) * double(cosine) / double(count);
        sines[i] += double(turn.magnitude) * double(sine) / double(count);
      }
    const auto turned = [&](double* x, idx stride) {
      for (int i = 0; i < turn.dims / 2; ++i) {
        const bool split = turn.pairs == rope_pairs::half_split;
        double& a = x[stride * (turn.first + (split ? i : 2 * i))];
        double& b = x[stride * (turn.first + (split ? i + turn.dims / 2 : 2 * i + 1))];
        const double a0 = a, c = cosines[std::size_t(i)], s = sines[std::size_t(i)];
        a = a0 * c - b * s, b = b * c + a0 * s;
      }
    };
    const auto n = double(queries(layer));
    for (int head = 0; head < heads_; ++head) {
      const double* const sums = &sums_[at(layer, head)];
      double* const mean = &expected_[at(layer, head)];
      double* const covariance = mean + dim_;
      for (int i = 0; i < dim_; ++i) mean[i] = sums[i] / n;
      for (int i = 0; i < dim_; ++i)
        for (int j = 0; j < dim_; ++j) covariance[i * dim_ + j] = sums[dim_ + i * dim_ + j] / n - mean[i] * mean[j];
      turned(mean, 1);
      for (int i = 0; i < dim_; ++i) turned(covariance + i * dim_, 1);
      for (int i = 0; i < dim_; ++i) turned(covariance + i, dim_);
    }
  }

  /// ln of the mean over the expected queries q of a head of exp(scale q k), k [dim]: scale m k + scale^2 k C k / 2.
  double log_expected_exp(int layer, int head, const float* k, float scale) const {
    const double* const mean = &expected_[at(layer, head)];
    const double* row = mean + dim_;
    std::vector<double> product(static_cast<std::size_t>(dim_));  // C k: sums side by side, for vectors
    for (int i = 0; i < dim_; ++i, row += dim_)
      for (int j = 0; j < dim_; ++j) product[std::size_t(j)] += double(k[i]) * row[j];
    double linear = 0, square = 0;
    for (int i = 0; i < dim_; ++i) {
      linear += mean[i] * double(k[i]);
      square += product[std::size_t(i)] * double(k[i]);
    }
    return double(scale) * linear + double(scale) * double(scale) * square / 2;
  }

  /// The sequence is new.
  void clear() {
    std::fill(count_.begin(), count_.end(), 0);
    std::fill(sums_.begin(), sums_.end(), 0.0);
  }

 private:
  void check(int layer) const {
    detail::expects(layer >= 0 && layer < layers_, "layer ", layer, "; there are moments of ", layers_);
  }
  std::size_t list() const { return std::size_t(heads_) * std::size_t(dim_) * std::size_t(dim_ + 1); }
  std::size_t at(int layer, int head) const {
    return std::size_t(layer) * list() + std::size_t(head) * std::size_t(dim_) * std::size_t(dim_ + 1);
  }

  int layers_, heads_, dim_;
  std::vector<idx> count_;        // [layers]
  std::vector<double> sums_;      // [layers][query heads][dim, dim x dim]: of q, and of its products
  std::vector<double> expected_;  // the same: mean and covariance, turned
};

}  // namespace kvilt::inline KVILT_ABI
