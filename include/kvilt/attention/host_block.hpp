#pragma once

#include <kvilt/attention/state.hpp>
#include <kvilt/attention/variant.hpp>
#include <kvilt/cache/append.hpp>
#include <kvilt/cache/step.hpp>
#include <kvilt/cache/view.hpp>
#include <kvilt/position/rope.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvilt::inline KVILT_ABI::detail {

/// e^x for x <= 0 to about one unit in the last place, as straight code that compilers vectorise; 0 below -87.
/// NOTE: no step relies on the order of additions, so -ffast-math leaves it right (but for NaN).
inline float exp_nonpositive(float x) {
  constexpr float log2e = 1.44269504088896341f, ln2_high = 0.693145751953125f, ln2_low = 1.42860682030941723212e-6f;
  const int n = int((x > -88.0f ? x : -88.0f) * log2e - 0.5f);  // towards 0, so to nearest for x <= 0
  const float r = (x - float(n) * ln2_high) - float(n) * ln2_low;
  float p = 1.9875691500e-4f;  // minimax polynomial of (e^r - 1 - r) / r^2 (S. Moshier, Cephes expf)
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float e = p * r * r + r + 1;
  const float power = float_of(std::uint32_t(n + 127) << 23);
  return x < -87.0f ? 0.0f : e * power;
}

/// sum of a[i] b[i], i < n: `Lanes` partial sums added in a fixed order.
template <int Lanes>
inline float dot(const float* a, const float* b, int n) {
  float sum[Lanes] = {};
  for (int i = 0; i < n; i += Lanes)
    for (int j = 0; j < Lanes; ++j) sum[j] += a[i + j] * b[i + j];
  for (int width = Lanes / 2; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) sum[j] += sum[j + width];
  return sum[0];
}

/// out[0, N) += sum over t of weight[t] * v[t * stride + ...], leaving weight 0 out: 0 x NaN is NaN.
template <int N>
inline void add_weighted(float* out, const float* v, int stride, const float* weight, int tokens) {
  float sum[N];
  for (int j = 0; j < N; ++j) sum[j] = out[j];
  for (int t = 0; t < tokens; ++t) {
    const float w = weight[t];
    if (w == 0) continue;
    for (int j = 0; j < N; ++j) sum[j] += w * v[t * stride + j];
  }
  for (int j = 0; j < N; ++j) out[j] = sum[j];
}

/// Attention of up to `host_tile::rows` query rows of one sequence and KV head over all segments.
///
/// Keys stream through a tile of `host_tile::tokens` rows, decoded once for all query rows while they are in cache. A
/// token's place in the tiles is its position, across runs, pages and segments, so that a query's bits depend neither on
/// where rows lie nor on which other queries share the block.
template <class View, class Variant, class Positions>
class host_block {
 public:
  host_block(const View& view, const Variant& variant, const Positions& positions, float scale, const step_item& item,
             int head, int group, float* scratch)
      : variant_(variant),
        positions_(positions),
        scale_(scale),
        item_(item),
        head_(head),
        group_(group),
        k_dim_(view.k_dim()),
        v_dim_(view.v_dim()) {
    const auto take = [&scratch](int rows, int dim) { return std::exchange(scratch, scratch + idx(rows) * dim); };
    q_ = take(host_tile::rows, k_dim_);
    q_turned_ = take(host_tile::rows, k_dim_);
    k_ = take(host_tile::tokens, k_dim_);
    v_ = take(host_tile::tokens, v_dim_);
    scores_ = take(host_tile::rows, host_tile::tokens);
    out_ = take(host_tile::rows, v_dim_);
  }

  /// Reads query rows [first, first + count), a row being (token, head of the group).
  template <class Q>
  void load(const rows<Q>& q, int first, int count) {
    first_ = first;
    count_ = count;
    for (int r = 0; r < count_; ++r) {
      float* row = q_ + r * k_dim_;
      load_row(q.at(item_.q_row + query_of(r), head_ * group_ + member_of(r)), k_dim_, row);
      View::k_rotation::forward(row, k_dim_);
      const position_range seen = tiles_of(variant_, where_of(r));
      range_ = {smaller(range_.first, seen.first), larger(range_.last, seen.last)};
      max_[r] = -__builtin_huge_valf();
      sum_[r] = 0;
    }
    std::fill_n(out_, idx(count_) * v_dim_, 0.0f);
  }

  /// Takes in the live rows of one segment.
  template <class Segment>
  void attend(const Segment& seg) {
    const float* q = queries_for(seg);
    const idx rows = seg.retention.count(item_.n, item_.sequence, head_);
    for (idx i = first_row(seg, rows); i < rows;) {
      const kept_row kept = seg.retention.at(item_.n, item_.sequence, head_, i);
      constexpr bool ordered = Segment::retention_type::ordered;
      if (ordered && kept.position >= range_.last) break;
      const place p = seg.layout.locate(item_.sequence, head_, kept.slot);
      const int first = ordered ? int(kept.position % host_tile::tokens) : filled_;
      const int run = int(smaller(smaller(kept.run, p.run), smaller(rows - i, host_tile::tokens - first)));
      i += run;
      if (p.page < 0) continue;
      if (ordered) open_tile(kept.position / host_tile::tokens, first);
      for (int t = 0; t < run; ++t) {
        const place at{p.page, p.row + t, 1};
        decode_row(seg.k, seg.k_row(at, head_), k_ + (filled_ + t) * k_dim_);
        decode_row(seg.v, seg.v_row(at, head_), v_ + (filled_ + t) * v_dim_);
      }
      score(seg.retention, q, kept.position, run);
      filled_ += run;
      if (filled_ == host_tile::tokens) absorb();
    }
  }

  /// Writes the rows' outputs and log-sum-exps.
  template <class Out>
  void finish(const rows<Out>& out, natural_lse lse) {
    absorb();
    for (int r = 0; r < count_; ++r) {
      const idx to_row = item_.q_row + query_of(r);
      const int to_head = head_ * group_ + member_of(r);
      float* row = out_ + r * v_dim_;
      const bool empty = sum_[r] == 0;  // NOTE: not the maximum: that of NaNs alone is -infinity too
      const float inverse = empty ? 0.0f : 1 / sum_[r];
      for (int d = 0; d < v_dim_; ++d) row[d] *= inverse;
      View::v_rotation::inverse(row, v_dim_);
      for (int d = 0; d < v_dim_; ++d) store(out.at(to_row, to_head)[d], row[d]);
      if (lse) lse.at(to_row, to_head) = empty ? max_[r] : max_[r] + std::log(sum_[r]);
    }
  }

 private:
  int query_of(int r) const { return (first_ + r) / group_; }
  int member_of(int r) const { return (first_ + r) % group_; }
  where where_of(int r) const {
    const int query = query_of(r);
    return {item_.sequence, head_ * group_ + member_of(r), head_, query, item_.query_position(query), 0};
  }

  /// Q as this segment's keys want it: turned for the place in the cache where the policy says so.
  template <class Segment>
  const float* queries_for(const Segment& seg) {
    if constexpr (requires {
                    positions_.turn;
                    seg.retention.in_cache(idx());
                  }) {
      for (int r = 0; r < count_; ++r) {
        float* row = q_turned_ + r * k_dim_;
        std::copy_n(q_ + r * k_dim_, k_dim_, row);
        const idx position = item_.query_position(query_of(r));
        View::k_rotation::inverse(row, k_dim_);
        positions_.turn.shift(row, seg.retention.in_cache(position) - position);
        View::k_rotation::forward(row, k_dim_);
      }
      return q_turned_;
    } else {
      return q_;
    }
  }

  /// Makes the tile's next row that of position `tile * host_tile::tokens + first`; rows passed over are hidden.
  void open_tile(idx tile, int first) {
    if (tile != tile_ || first < filled_) absorb();
    tile_ = tile;
    for (int r = 0; r < count_; ++r)
      std::fill(scores_ + r * host_tile::tokens + filled_, scores_ + r * host_tile::tokens + first,
                -__builtin_huge_valf());
    filled_ = first;
  }

  /// The first row that any query may see.
  template <class Segment>
  idx first_row(const Segment& seg, idx rows) const {
    idx low = 0;
    if constexpr (Segment::retention_type::ordered)
      for (idx high = rows; low < high;) {
        const idx middle = (low + high) / 2;
        const bool before = seg.retention.at(item_.n, item_.sequence, head_, middle).position < range_.first;
        (before ? low : high) = before ? middle + 1 : middle;
      }
    return low;
  }

  /// Scores of `run` keys from position `first` on, which lie in the tile from `filled_` on.
  template <class Retention>
  void score(const Retention& retention, const float* q, idx first, int run) {
    for (int r = 0; r < count_; ++r) {
      float* scores = scores_ + r * host_tile::tokens + filled_;
      const float* row = q + r * k_dim_;
      for (int t = 0; t < run; ++t) {
        const float* key = k_ + (filled_ + t) * k_dim_;
        scores[t] = scale_ * (k_dim_ % 16 == 0 ? dot<16>(row, key, k_dim_) : dot<8>(row, key, k_dim_));
      }
      where w = where_of(r);
      for (int t = 0; t < run; ++t) {
        w.k_position = first + t;
        const bool kept = retention.sees(w.q_position, w.k_position) && keeps(variant_, w);
        scores[t] = kept ? scored(variant_, w, scores[t]) : -__builtin_huge_valf();
      }
    }
  }

  /// Adds the tile to the rows' states and empties it.
  void absorb() {
    if (filled_ == 0) return;
    for (int r = 0; r < count_; ++r) {
      float* scores = scores_ + r * host_tile::tokens;
      std::fill(scores + filled_, scores + host_tile::tokens, -__builtin_huge_valf());
      float high = max_[r];
      for (int t = 0; t < host_tile::tokens; ++t) high = scores[t] > high ? scores[t] : high;
      // NOTE: a NaN score is no maximum, and still has to reach the sum.
      const bool empty = high == -__builtin_huge_valf() && !any_nan(scores);
      if (empty) continue;
      if (high > max_[r]) rescale(r, std::exp(max_[r] - high));
      max_[r] = high;
      for (int t = 0; t < host_tile::tokens; ++t) scores[t] = exp_nonpositive(scores[t] - high);
      sum_[r] += sum(scores);
      add_values(out_ + r * v_dim_, scores);
    }
    filled_ = 0;
  }

  static bool any_nan(const float* scores) {
    bool nan = false;
    for (int t = 0; t < host_tile::tokens; ++t) nan |= is_nan(scores[t]);
    return nan;
  }
  static float sum(const float* weights) {
    float lanes[16] = {};
    for (int t = 0; t < host_tile::tokens; t += 16)
      for (int j = 0; j < 16; ++j) lanes[j] += weights[t + j];
    float total = 0;
    for (float lane : lanes) total += lane;
    return total;
  }
  void rescale(int r, float factor) {
    sum_[r] *= factor;
    for (int d = 0; d < v_dim_; ++d) out_[r * v_dim_ + d] *= factor;
  }
  void add_values(float* out, const float* weights) const {
    int d = 0;
    for (; d + 32 <= v_dim_; d += 32) add_weighted<32>(out + d, v_ + d, v_dim_, weights, filled_);
    for (; d < v_dim_; d += 8) add_weighted<8>(out + d, v_ + d, v_dim_, weights, filled_);
  }

  const Variant& variant_;
  const Positions& positions_;
  float scale_;
  const step_item& item_;
  int head_, group_, k_dim_, v_dim_;
  int first_ = 0, count_ = 0, filled_ = 0;
  idx tile_ = 0;  // which tile of positions is being filled
  position_range range_{no_end, 0};
  float* q_;         // [rows][k_dim], in the view's rotation
  float* q_turned_;  // [rows][k_dim], for a segment that counts positions in the cache
  float* k_;         // [tokens][k_dim]
  float* v_;         // [tokens][v_dim]
  float* scores_;    // [rows][tokens], then weights
  float* out_;       // [rows][v_dim], not yet divided by sum_
  float max_[host_tile::rows];
  float sum_[host_tile::rows];
};

}  // namespace kvilt::inline KVILT_ABI::detail
