#pragma once

#include <kvilt/attention/host/kernels.hpp>
#include <kvilt/attention/host/state.hpp>
#include <kvilt/attention/host/tile.hpp>
#include <kvilt/attention/positions.hpp>
#include <kvilt/attention/variant.hpp>
#include <kvilt/cache/append.hpp>
#include <kvilt/cache/view.hpp>
#include <kvilt/position/rope.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <utility>

namespace kvilt::inline KVILT_ABI::detail {

template <class Retention>
bool sees_all(const Retention& retention, idx q_position, position_range range) {
  if constexpr (requires { retention.sees_from(q_position); })
    return range.first >= retention.sees_from(q_position);
  else
    return false;
}

/// Attention of up to `host_tile::rows` query rows of one sequence and KV head.
///
/// Keys stream through tiles of `host_tile::tokens` rows. A token's place in the tiles is its position, across runs,
/// pages and segments, and states are added up at every `host_tile::leaf` positions, so that a query's bits depend
/// neither on where rows lie, nor on which other queries share the block, nor on how the work was shared out.
template <class View, class Variant, class Positions>
class host_block {
 public:
  host_block(const host_kernels& kernels, const View& view, const Variant& variant, const Positions& positions,
             float scale, const step_item& item, int head, int group, unsigned char* scratch)
      : kernels_(kernels),
        variant_(variant),
        positions_(positions),
        scale_(scale),
        item_(item),
        head_(head),
        group_(group),
        k_dim_(view.k_dim()),
        v_dim_(view.v_dim()),
        q_stride_(round_up(view.k_dim(), host_tile::vector)) {
    const auto take = [&scratch](idx rows, idx bytes) {
      return std::exchange(scratch, scratch + round_up(rows * bytes, host_tile::line));
    };
    const auto floats = [&](idx rows, idx count) {
      return reinterpret_cast<float*>(take(rows, count * idx(sizeof(float))));
    };
    constexpr idx rows = host_tile::rows, tokens = host_tile::tokens;
    q_ = floats(rows, q_stride_);
    q_turned_ = floats(rows, q_stride_);
    q_codes_ = reinterpret_cast<signed char*>(take(rows, 2 * q_stride_));
    k_ = floats(tokens, k_dim_);
    v_ = floats(tokens, v_dim_);
    products_ = floats(rows, tokens);
    scores_ = floats(rows, tokens);
    weights_ = floats(rows, tokens);
    state_ = row_states::at(floats(1, row_states::floats(rows, v_dim_)), rows, v_dim_);
    next_ = floats(rows, state_.stride);
    total_ = row_states::at(floats(1, row_states::floats(rows, v_dim_)), rows, v_dim_);
    integers_ = take(tokens, larger(q_stride_, host_tile::integer_numbers));
  }

  /// Reads query rows [first, first + count), a row being (token, head of the group).
  template <class Q>
  void load(const rows<Q>& q, int first, int count) {
    first_ = first;
    count_ = count;
    for (int r = 0; r < count_; ++r) {
      float* row = q_ + r * q_stride_;
      load_row(q.at(item_.q_row + query_of(r), head_ * group_ + member_of(r)), k_dim_, row);
      std::fill(row + k_dim_, row + q_stride_, 0.0f);
      if constexpr (!turns_keys) View::k_rotation::forward(row, k_dim_);
      const position_range seen = tiles_of(variant_, where_of(r));
      range_ = {smaller(range_.first, seen.first), larger(range_.last, seen.last)};
    }
    state_.clear(count_);
    total_.clear(count_);
    // NOTE: vectors of the output end beyond its rows.
    std::fill_n(next_, idx(count_) * state_.stride, 0.0f);
  }

  /// Takes in every key, leaf by leaf.
  void attend(const View& view) {
    for_each_leaf(view, {0, no_end}, [&](idx) { total_.add(kernels_, state_, count_); });
  }

  /// States of the keys of leaf `leaf`, for another block to add up: `to` has room for them.
  void attend_leaf(const View& view, idx leaf, const row_states& to) {
    to.clear(count_);
    for_each_leaf(view, {leaf * host_tile::leaf, (leaf + 1) * host_tile::leaf},
                  [&](idx) { to.add(kernels_, state_, count_); });
  }

  const row_states& total() const { return total_; }

  /// Writes the rows' outputs and log-sum-exps, whose states are `all`; these are no more after that.
  template <class Out>
  void finish(const row_states& all, const kvilt::rows<Out>& out, natural_lse lse) const {
    for (int r = 0; r < count_; ++r) {
      const idx to_row = item_.q_row + query_of(r);
      const int to_head = head_ * group_ + member_of(r);
      float* row = all.out + r * all.stride;
      if constexpr (has_sink<Variant>) all.add_sink(r, variant_.sink(to_head));
      const bool empty = all.sum[r] == 0;  // NOTE: not the maximum: that of NaNs alone is -infinity too
      const float inverse = empty ? 0.0f : 1 / all.sum[r];
      for (int d = 0; d < v_dim_; ++d) row[d] *= inverse;
      View::v_rotation::inverse(row, v_dim_);
      for (int d = 0; d < v_dim_; ++d) store(out.at(to_row, to_head)[d], row[d]);
      if (lse) lse.at(to_row, to_head) = empty ? all.maximum[r] : all.maximum[r] + std::log(all.sum[r]);
    }
  }

 private:
  static constexpr bool turns_keys = std::is_same_v<Positions, rope_on_read>;

  /// How a segment's keys reach the kernels; those that turn on the way are decoded.
  template <class Segment>
  static constexpr bool plain_keys = !turns_keys && plain_format<typename Segment::k_format>;
  template <class Segment>
  static consteval plain_codes key_codes() {
    if constexpr (plain_keys<Segment>)
      return Segment::k_format::plain;
    else
      return {};
  }

  int query_of(int r) const { return (first_ + r) / group_; }
  int member_of(int r) const { return (first_ + r) % group_; }
  where where_of(int r) const {
    const int query = query_of(r);
    return {item_.sequence, head_ * group_ + member_of(r), head_, query, item_.query_position(query), 0};
  }

  /// `body(leaf)` after the keys of each leaf of `span` are in the state.
  template <class Body>
  void for_each_leaf(const View& view, position_range span, Body body) {
    span = {larger(span.first, range_.first), smaller(span.last, smaller(range_.last, item_.n.after))};
    if (!View::ordered) {  // rows come in no order: one leaf
      view.each([&](const auto& seg) { attend(seg, span); });
      absorb();
      body(0);
      return;
    }
    for (idx first = span.first; first < span.last;) {
      const idx leaf = first / host_tile::leaf, end = smaller((leaf + 1) * host_tile::leaf, span.last);
      view.each([&](const auto& seg) { attend(seg, {first, end}); });
      absorb();
      body(leaf);
      state_.clear(count_);
      first = end;
    }
  }

  /// Q as this segment's keys want it: turned for the place in the cache where the policy says so.
  template <class Segment>
  const float* queries_for(const Segment& seg) {
    if constexpr (std::is_same_v<Positions, cache_positions> && requires { seg.retention.in_cache(idx()); }) {
      for (int r = 0; r < count_; ++r) {
        float* row = q_turned_ + r * q_stride_;
        std::copy_n(q_ + r * q_stride_, q_stride_, row);
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
  template <class Segment>
  void prepare_queries(const Segment& seg) {
    q_now_ = queries_for(seg);
    constexpr plain_codes codes = key_codes<Segment>();
    const bool integers = by_integers(codes);
    for (int r = 0; r < count_; ++r) {
      const float* row = q_now_ + r * q_stride_;
      if (integers) {
        kernels_.quantise_query(codes.codes, row, k_dim_, q_codes_ + r * 2 * q_stride_, q_scale_[r], q_code_sum_[r]);
        q_sum_[r] = q_scale_[r] * float(q_code_sum_[r]);
      } else if (codes.params == param_kind::scale_zero) {
        q_sum_[r] = std::accumulate(row, row + k_dim_, 0.0f);
      } else {
        q_sum_[r] = 0;
      }
    }
  }
  bool by_integers(plain_codes codes) const {
    return kernels_.multiply_integer_keys[int(codes.codes)] && k_dim_ <= widest_integers;
  }

  /// Takes in the live rows of one segment whose positions are in `span`.
  template <class Segment>
  void attend(const Segment& seg, position_range span) {
    constexpr bool ordered = Segment::retention_type::ordered;
    const idx rows = seg.retention.count(item_.n, item_.sequence, head_);
    int part = none;  // the tile's first token of this segment
    bool prepared = false;
    for (idx i = first_row(seg, rows, span.first); i < rows;) {
      const kept_row kept = seg.retention.at(item_.n, item_.sequence, head_, i);
      if (ordered && kept.position >= span.last) break;
      const place p = seg.layout.locate(item_.sequence, head_, kept.slot);
      const idx tile = ordered ? kept.position / host_tile::tokens : 0;
      const int first = ordered ? int(kept.position % host_tile::tokens) : filled_;
      idx run = smaller(smaller(kept.run, p.run), smaller(rows - i, host_tile::tokens - first));
      if (ordered) run = smaller(run, span.last - kept.position);
      i += run;
      if (p.page < 0) continue;
      if (!std::exchange(prepared, true)) prepare_queries(seg);
      if (ordered && (tile != tile_ || first < filled_)) close_tile(seg, part);
      tile_ = tile;
      if (part == none) part = first;
      take(seg, p, kept.position, first, int(run));
      foresee(seg, i - run + host_tile::tokens, rows, first, int(run));
      if (filled_ == host_tile::tokens) close_tile(seg, part);
    }
    score(seg, part);
  }
  template <class Segment>
  void close_tile(const Segment& seg, int& part) {
    score(seg, std::exchange(part, none));
    absorb();
  }

  /// The rows from `i` on are those of the next tile: the kernels ask for them while they work on this one.
  template <class Segment>
  void foresee(const Segment& seg, idx i, idx rows, int first, int run) {
    for (int t = 0; t < run;) {
      const kept_row kept = seg.retention.at(item_.n, item_.sequence, head_, smaller(i + t, rows - 1));
      const place p = seg.layout.locate(item_.sequence, head_, kept.slot);
      const int count = p.page < 0 ? 1 : int(smaller(smaller(kept.run, p.run), run - t));
      const place known = p.page < 0 ? place{} : p;
      if constexpr (plain_keys<Segment>) keys_.foresee(seg.k, seg.planes.k_codes, known, head_, first + t, count);
      values_.foresee(seg.v, seg.planes.v_codes, known, head_, first + t, count);
      t += count;
    }
  }

  /// Makes `run` rows the tile's tokens from `first` on; those passed over are hidden.
  template <class Segment>
  void take(const Segment& seg, place p, idx position, int first, int run) {
    if constexpr (turns_keys)
      take_turned(seg, p, position, first, run);
    else
      keys_.take(seg.k, seg.planes.k_codes, seg.planes.k_params, p, head_, first, run, k_);
    values_.take(seg.v, seg.planes.v_codes, seg.planes.v_params, p, head_, first, run, v_);
    for (int t = 0; t < run; ++t) key_position_[first + t] = position + t;
    live_ |= (run == host_tile::tokens ? ~std::uint64_t(0) : (std::uint64_t(1) << run) - 1) << first;
    filled_ = first + run;
    constexpr plain_codes codes = plain_or_decoded<typename Segment::v_format>();
    if (parts_ > 0 && part_[parts_ - 1].codes == codes)
      part_[parts_ - 1].last = filled_;
    else
      part_[parts_++] = {first, filled_, codes, plain_format<typename Segment::v_format>};
  }

  /// Keys that were appended without RoPE, turned; neither they nor Q are in the view's rotation.
  template <class Segment>
  void take_turned(const Segment& seg, place p, idx position, int first, int run) {
    for (int t = 0; t < run; ++t) {
      float* key = k_ + idx(first + t) * k_dim_;
      decode_row(seg.k, seg.k_row({p.page, p.row + t, 1}, head_), key);
      View::k_rotation::inverse(key, k_dim_);
      positions_.turn.apply(key, position + t);
      keys_.rows[first + t] = reinterpret_cast<const unsigned char*>(key);
    }
  }

  /// The first row that any query may see.
  template <class Segment>
  idx first_row(const Segment& seg, idx rows, idx first_position) const {
    idx low = 0;
    if constexpr (Segment::retention_type::ordered)
      for (idx high = rows; low < high;) {
        const idx middle = (low + high) / 2;
        const bool before = seg.retention.at(item_.n, item_.sequence, head_, middle).position < first_position;
        (before ? low : high) = before ? middle + 1 : middle;
      }
    return low;
  }

  /// Scores of the tile's keys from token `part` on, which are this segment's.
  template <class Segment>
  void score(const Segment& seg, int part) {
    if (part == none) return;
    constexpr plain_codes codes = key_codes<Segment>();
    const bool integers = by_integers(codes);
    fill_gaps(keys_.rows, part, filled_);
    score_task task;
    task.q = q_now_, task.q_stride = q_stride_, task.count = count_;
    task.q_codes = q_codes_, task.q_scale = q_scale_, task.q_sum = q_code_sum_;
    task.rows = keys_.rows, task.dim = k_dim_, task.offset = codes.offset;
    task.ahead = keys_.ahead;
    if constexpr (!plain_keys<Segment>) task.ahead = nullptr;
    task.first = part, task.last = filled_;
    task.out = products_, task.scratch = integers_;
    (integers ? kernels_.multiply_integer_keys : kernels_.multiply_keys)[int(codes.codes)](task);
    const row_params params = keys_.widened(kernels_, codes.params);
    for (int r = 0; r < count_; ++r) {
      float* scores = scores_ + r * host_tile::tokens;
      kernels_.scale_products(products_ + r * host_tile::tokens, params, q_sum_[r], scale_, part, filled_, scores);
      ask_variant(seg.retention, r, part, scores);
    }
  }

  /// What the variant makes of a row's scores, and what it and the retention hide.
  template <class Retention>
  void ask_variant(const Retention& retention, int r, int part, float* scores) {
    where w = where_of(r);
    const position_range range{key_position_[part], key_position_[filled_ - 1] + 1};
    const bool all_kept = Retention::ordered && keeps_whole(variant_, w, range);
    const bool all_seen = Retention::ordered && sees_all(retention, w.q_position, range);
    constexpr bool changes = requires {
      variant_.score(w, 0.0f);
    };
    if (!changes && all_kept && all_seen) return;
    for (int t = part; t < filled_; ++t) {
      w.k_position = key_position_[t];
      const bool shown = (all_seen || retention.sees(w.q_position, w.k_position)) && (all_kept || keeps(variant_, w));
      scores[t] = shown ? scored(variant_, w, scores[t]) : -__builtin_huge_valf();
    }
  }

  /// Gives tokens of the tile that are not live rows of [first, last) a row that may be read instead.
  void fill_gaps(const unsigned char** rows, int first, int last) const {
    if (first == 0 && last == host_tile::tokens && live_ == ~std::uint64_t(0)) return;
    for (int t = 0; t < host_tile::tokens; ++t)
      if (t < first || t >= last || !(live_ >> t & 1)) rows[t] = rows[first];
  }

  /// Adds the tile to the rows' states and empties it.
  void absorb() {
    if (filled_ == 0) return;
    bool any = false;
    for (int r = 0; r < count_; ++r) {
      float* scores = scores_ + r * host_tile::tokens;
      for (int t = 0; live_ != ~std::uint64_t(0) && t < host_tile::tokens; ++t)
        if (!(live_ >> t & 1)) scores[t] = -__builtin_huge_valf();
      any |= kernels_.weigh(scores, state_.maximum[r], state_.sum[r], factor_[r]);
    }
    for (int i = 0; any && i < parts_; ++i) add_values(part_[i]);
    filled_ = parts_ = 0;
    live_ = 0;
  }

  void add_values(const value_part& part) {
    const bool alone = parts_ == 1, as_they_are = part.codes.params == param_kind::none;
    value_task task;
    const unsigned char* rows[host_tile::tokens];
    std::copy_n(values_.rows, host_tile::tokens, rows);
    fill_gaps(rows, part.first, part.last);
    task.ahead = part.plain ? values_.ahead : nullptr;
    const row_params params = values_.widened(kernels_, part.codes.params);
    for (int r = 0; r < count_; ++r) {
      const float* from = scores_ + r * host_tile::tokens;
      float* to = weights_ + r * host_tile::tokens;
      if (!alone) {
        for (int t = 0; t < host_tile::tokens; ++t) to[t] = t >= part.first && t < part.last ? from[t] : 0.0f;
        from = to;
      }
      constant_[r] = as_they_are ? 0.0f : kernels_.scale_weights(from, params, to);
    }
    task.weights = alone && as_they_are ? scores_ : weights_, task.count = count_, task.rows = rows, task.dim = v_dim_;
    task.first = part.first, task.last = part.last, task.offset = part.codes.offset;
    task.factor = factor_, task.constant = constant_;
    task.from = state_.out, task.to = next_, task.stride = state_.stride;
    task.scratch = integers_;
    const auto integer = kernels_.add_integer_values[int(part.codes.codes)];
    (integer ? integer : kernels_.add_values[int(part.codes.codes)])(task);
    std::swap(state_.out, next_);
    std::fill_n(factor_, count_, 1.0f);
  }

  static constexpr int none = -1;
  // NOTE: beyond, sums of integer products of keys would not fit 32 bits.
  static constexpr int widest_integers = 1024;

  const host_kernels& kernels_;
  const Variant& variant_;
  const Positions& positions_;
  float scale_;
  const step_item& item_;
  int head_, group_, k_dim_, v_dim_;
  idx q_stride_;
  int first_ = 0, count_ = 0;
  position_range range_{no_end, 0};

  float* q_;         // [rows][q_stride], in the view's rotation
  float* q_turned_;  // [rows][q_stride], for a segment that counts positions in the cache
  const float* q_now_ = nullptr;
  signed char* q_codes_;  // [rows][2 q_stride]
  float q_scale_[host_tile::rows];
  int q_code_sum_[host_tile::rows];
  float q_sum_[host_tile::rows];

  idx tile_ = 0;  // which tile of positions is being filled
  int filled_ = 0, parts_ = 0;
  std::uint64_t live_ = 0;
  tile_side keys_, values_;
  idx key_position_[host_tile::tokens];
  value_part part_[2 * View::segments];
  float* k_;         // [tokens][k_dim], of formats that are decoded
  float* v_;         // [tokens][v_dim]
  float* products_;  // [rows][tokens]
  float* scores_;    // [rows][tokens], then weights
  float* weights_;   // [rows][tokens], times scales
  unsigned char* integers_;

  row_states state_, total_;  // of the leaf, and of the leaves before
  float* next_;               // [rows][stride], takes turns with state_.out
  float factor_[host_tile::rows];
  float constant_[host_tile::rows];
};

}  // namespace kvilt::inline KVILT_ABI::detail
