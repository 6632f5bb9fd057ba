#pragma once

#include <kvilt/attention/host/softmax.hpp>
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

/// Attention of up to `host_tile::rows` query rows of one sequence and KV head; `Tile` says what becomes of the scores.
///
/// Keys stream through tiles of `host_tile::tokens` rows. A token's place in the tiles is its position, across runs,
/// pages and segments (where tokens between others are gone, the number of its row, so that tiles are full), and states
/// are added up at every `host_tile::leaf` positions, so that a query's bits depend neither on where rows lie, nor on
/// which other queries share the block, nor on how the work was shared out.
template <class View, class Variant, class Positions, class Tile = tile_softmax>
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
        q_stride_(round_up(view.k_dim(), host_tile::vector)),
        arena_(scratch),
        tile_(kernels, v_dim_, arena_) {
    q_ = arena_.floats(host_tile::rows, q_stride_);
    q_turned_ = arena_.floats(host_tile::rows, q_stride_);
    q_codes_ = reinterpret_cast<std::int16_t*>(arena_.bytes(host_tile::rows, q_stride_ * idx(sizeof(std::int16_t))));
    k_ = arena_.floats(host_tile::tokens, k_dim_);
    v_ = arena_.floats(host_tile::tokens, v_dim_);
    products_ = arena_.floats(host_tile::rows, host_tile::tokens);
    total_ = arena_.states(host_tile::rows, v_dim_);
  }

  /// Is for query rows [first, first + count), a row being (token, head of the group).
  void seat(int first, int count) {
    count_ = count;
    for (int r = 0; r < count_; ++r) {
      const int query = (first + r) / group_, q_head = head_ * group_ + (first + r) % group_;
      where_[r] = {item_.sequence, q_head, head_, query, item_.query_position(query), 0};
    }
  }

  /// Reads the rows.
  template <class Q>
  void load(const rows<Q>& q) {
    prepared_for_ = nullptr;
    for (int r = 0; r < count_; ++r) {
      float* row = q_ + r * q_stride_;
      load_row(q.at(item_.q_row + where_[r].q_index, where_[r].q_head), k_dim_, row);
      std::fill(row + k_dim_, row + q_stride_, 0.0f);
      if constexpr (!turns_keys) View::k_rotation::forward(row, k_dim_);
      const position_range seen = tiles_of(variant_, where_[r]);
      range_ = {smaller(range_.first, seen.first), larger(range_.last, seen.last)};
    }
    tile_.begin(count_);
    total_.clear(count_);
  }

  const where& row(int r) const { return where_[r]; }
  Tile& tile() { return tile_; }

  /// Takes in the keys at the positions of `span`, for a tile that keeps no state.
  void pass(const View& view, position_range span) {
    for_each_leaf(view, span, [] {});
  }

  /// Takes in every key, leaf by leaf.
  void attend(const View& view) {
    for_each_leaf(view, {0, no_end}, [&] { total_.add(kernels_, tile_.state(), count_); });
  }

  /// States of the keys of leaf `leaf`, for another block to add up: `to` has room for them.
  void attend_leaf(const View& view, idx leaf, const row_states& to) {
    to.clear(count_);
    for_each_leaf(view, {leaf * host_tile::leaf, (leaf + 1) * host_tile::leaf},
                  [&] { to.add(kernels_, tile_.state(), count_); });
  }

  const row_states& total() const { return total_; }

  /// Writes the rows' outputs and log-sum-exps, whose states are `all`; these are no more after that.
  template <class Out>
  void finish(const row_states& all, const kvilt::rows<Out>& out, natural_lse lse) const {
    for (int r = 0; r < count_; ++r) {
      const idx to_row = item_.q_row + where_[r].q_index;
      const int to_head = where_[r].q_head;
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
  static constexpr bool has_gaps = View::has_gaps;

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

  /// `body()` after the keys of each leaf of `span` are in the state.
  template <class Body>
  void for_each_leaf(const View& view, position_range span, Body body) {
    span = {larger(span.first, range_.first), smaller(span.last, smaller(range_.last, item_.n.after))};
    if (!View::ordered) {  // rows come in no order: one leaf
      attend(view, span);
      tile_.absorb();
      body();
      return;
    }
    for (idx first = span.first; first < span.last;) {
      const idx end = smaller((first / host_tile::leaf + 1) * host_tile::leaf, span.last);
      attend(view, {first, end});
      tile_.absorb();
      body();
      tile_.clear();
      first = end;
    }
  }

  void attend(const View& view, position_range span) {
    rows_before_ = 0;
    view.each([&](const auto& seg) { attend(seg, span); });
  }

  /// Q as this segment's keys want it: turned for the place in the cache where the policy says so.
  template <class Segment>
  const float* queries_for(const Segment& seg) {
    if constexpr (std::is_same_v<Positions, cache_positions> && requires { seg.retention.in_cache(idx()); }) {
      for (int r = 0; r < count_; ++r) {
        float* row = q_turned_ + r * q_stride_;
        std::copy_n(q_ + r * q_stride_, q_stride_, row);
        const idx position = where_[r].q_position;
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
    prepared_for_ = &seg;
    q_now_ = queries_for(seg);
    constexpr plain_codes codes = key_codes<Segment>();
    const bool integers = by_integers(codes);
    for (int r = 0; r < count_; ++r) {
      const float* row = q_now_ + r * q_stride_;
      if (integers)
        kernels_.quantise_query(codes.codes, row, k_dim_, q_codes_ + r * q_stride_, q_scale_[r], q_code_sum_[r]);
      // NOTE: a key's zero meets the query as it is, not as an integer: keys may lie far from zero.
      q_sum_[r] = codes.params == param_kind::scale_zero ? std::accumulate(row, row + k_dim_, 0.0f) : 0.0f;
    }
  }
  bool by_integers(plain_codes codes) const {
    // NOTE: sums of 14-bit queries and codes without their offset fit 32 bits.
    const idx centre = centre_of(codes), top = codes.codes == code_kind::u4 ? 15 : 255;
    return kernels_.multiply_integer_keys[int(codes.codes)] &&
           larger(centre, top - centre) * host_tile::integer_limit * k_dim_ < idx(1) << 31;
  }

  /// Takes in the live rows of one segment whose positions are in `span`.
  template <class Segment>
  void attend(const Segment& seg, position_range span) {
    constexpr bool ordered = Segment::retention_type::ordered;
    const idx rows = seg.retention.count(item_.n, item_.sequence, head_);
    int part = none;  // the tile's first token of this segment
    for (idx i = first_row(seg, rows, span.first); i < rows;) {
      const kept_row kept = seg.retention.at(item_.n, item_.sequence, head_, i);
      if (ordered && kept.position >= span.last) break;
      const place p = seg.layout.locate(item_.sequence, head_, kept.slot);
      const idx number = has_gaps ? rows_before_ + i : kept.position;
      const idx tile = ordered ? number / host_tile::tokens : 0;
      const int first = ordered ? int(number % host_tile::tokens) : tile_.filled();
      idx run = smaller(smaller(kept.run, p.run), smaller(rows - i, host_tile::tokens - first));
      if (ordered) run = smaller(run, span.last - kept.position);
      i += run;
      if (p.page < 0) continue;
      if (prepared_for_ != &seg) prepare_queries(seg);
      if (ordered && (tile != tile_number_ || first < tile_.filled())) close_tile(seg, part);
      tile_number_ = tile;
      if (part == none) part = first;
      take(seg, p, kept.position, rows_before_ + i - run, first, int(run));
      foresee(seg, i - run + host_tile::tokens, rows, first, int(run));
      if (tile_.filled() == host_tile::tokens) close_tile(seg, part);
    }
    score(seg, part);
    rows_before_ += rows;
  }
  template <class Segment>
  void close_tile(const Segment& seg, int& part) {
    score(seg, std::exchange(part, none));
    tile_.absorb();
  }

  /// The rows from `i` on are those of the next tile: the kernels ask for them while they work on this one.
  template <class Segment>
  void foresee(const Segment& seg, idx i, idx rows, int first, int run) {
    constexpr bool read_as_they_lie =
        plain_format<typename Segment::k_format> || (Tile::weighs_values && plain_format<typename Segment::v_format>);
    for (int t = 0; read_as_they_lie && t < run;) {
      const kept_row kept = seg.retention.at(item_.n, item_.sequence, head_, smaller(i + t, rows - 1));
      const place p = seg.layout.locate(item_.sequence, head_, kept.slot);
      const int count = p.page < 0 ? 1 : int(smaller(smaller(kept.run, p.run), run - t));
      const place known = p.page < 0 ? place{} : p;
      if constexpr (plain_keys<Segment>) keys_.foresee(seg.k, seg.planes.k_codes, known, head_, first + t, count);
      if constexpr (Tile::weighs_values)
        tile_.values().foresee(seg.v, seg.planes.v_codes, known, head_, first + t, count);
      t += count;
    }
  }

  /// Makes `run` rows, of all the view's from number `row` on, the tile's tokens from `first` on; those passed over are
  /// hidden.
  template <class Segment>
  void take(const Segment& seg, place p, idx position, idx row, int first, int run) {
    if constexpr (turns_keys)
      take_turned(seg, p, position, first, run);
    else
      keys_.take(seg.k, seg.planes.k_codes, seg.planes.k_params, p, head_, first, run, k_);
    for (int t = 0; t < run; ++t) key_position_[first + t] = position + t;
    if constexpr (Tile::weighs_values)
      take_values(seg, p, first, run);
    else
      tile_.take(first, run, row);
  }

  template <class Segment>
  void take_values(const Segment& seg, place p, int first, int run) {
    // NOTE: where V is the first numbers of keys that were decoded just now, that is done once for both.
    if constexpr (shares_keys<typename Segment::v_format> && !turns_keys && !plain_keys<Segment>)
      std::copy_n(keys_.rows + first, run, tile_.values().rows + first);
    else
      tile_.values().take(seg.v, seg.planes.v_codes, seg.planes.v_params, p, head_, first, run, v_);
    tile_.take(first, run, plain_or_decoded<typename Segment::v_format>(), plain_format<typename Segment::v_format>);
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
    const int filled = tile_.filled();
    constexpr plain_codes codes = key_codes<Segment>();
    const bool integers = by_integers(codes);
    tile_.fill_gaps(keys_.rows, part, filled);
    score_task task;
    task.q = q_now_, task.q_stride = q_stride_, task.count = count_;
    task.q_codes = q_codes_, task.q_scale = q_scale_, task.q_sum = q_code_sum_;
    task.rows = keys_.rows, task.dim = k_dim_, task.offset = centre_of(codes);
    task.ahead = keys_.ahead;
    if constexpr (!plain_keys<Segment>) task.ahead = nullptr;
    task.first = part, task.last = filled;
    task.out = products_;
    (integers ? kernels_.multiply_integer_keys : kernels_.multiply_keys)[int(codes.codes)](task);
    const row_params params = keys_.widened(kernels_, codes);
    for (int r = 0; r < count_; ++r) {
      float* scores = tile_.scores(r);
      float* products = products_ + r * host_tile::tokens;
      // NOTE: whole vectors are written, and a tile's other parts have their scores already.
      const bool alone = part == 0;
      kernels_.scale_products(products, params, q_sum_[r], scale_, part, filled, alone ? scores : products);
      if (!alone) std::copy(products + part, products + filled, scores + part);
      ask_variant(seg.retention, r, part, scores);
    }
  }

  /// What the variant makes of a row's scores, and what it and the retention hide.
  template <class Retention>
  void ask_variant(const Retention& retention, int r, int part, float* scores) {
    where w = where_[r];
    const position_range range{key_position_[part], key_position_[tile_.filled() - 1] + 1};
    const bool all_kept = Retention::ordered && keeps_whole(variant_, w, range);
    const bool all_seen = Retention::ordered && sees_all(retention, w.q_position, range);
    constexpr bool changes = requires {
      variant_.score(w, 0.0f);
    };
    if (!changes && all_kept && all_seen) return;
    for (int t = part; t < tile_.filled(); ++t) {
      if (!tile_.live(t)) continue;
      w.k_position = key_position_[t];
      const bool shown = (all_seen || retention.sees(w.q_position, w.k_position)) && (all_kept || keeps(variant_, w));
      scores[t] = shown ? scored(variant_, w, scores[t]) : -__builtin_huge_valf();
    }
  }

  static constexpr int none = -1;

  const host_kernels& kernels_;
  const Variant& variant_;
  const Positions& positions_;
  float scale_;
  const step_item& item_;
  int head_, group_, k_dim_, v_dim_;
  idx q_stride_;
  int count_ = 0;
  where where_[host_tile::rows];  // each row's query
  position_range range_{no_end, 0};

  float* q_;                      // [rows][q_stride], in the view's rotation
  float* q_turned_;               // [rows][q_stride], for a segment that counts positions in the cache
  const float* q_now_ = nullptr;  // of the segment that they are prepared for
  const void* prepared_for_ = nullptr;
  std::int16_t* q_codes_;  // [rows][q_stride]
  float q_scale_[host_tile::rows];
  int q_code_sum_[host_tile::rows];
  float q_sum_[host_tile::rows];

  host_arena arena_;
  Tile tile_;
  row_states total_;  // of the leaves before

  idx tile_number_ = 0;  // of the one that is being filled
  tile_side keys_;
  idx key_position_[host_tile::tokens];
  idx rows_before_ = 0;  // this segment's
  float* k_;             // [tokens][k_dim], of formats that are decoded
  float* v_;             // [tokens][v_dim]
  float* products_;      // [rows][tokens]
};

}  // namespace kvilt::inline KVILT_ABI::detail
