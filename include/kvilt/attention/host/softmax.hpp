#pragma once

#include <kvilt/attention/host/kernels.hpp>
#include <kvilt/attention/host/state.hpp>
#include <kvilt/attention/host/tile.hpp>

#include <algorithm>
#include <utility>

namespace kvilt::inline KVILT_ABI::detail {

/// Hands out a worker's scratch, in rows on lines of their own.
class host_arena {
 public:
  explicit host_arena(unsigned char* memory) : next_(memory) {}
  unsigned char* bytes(idx rows, idx each) { return std::exchange(next_, next_ + host_tile::place(rows, each)); }
  float* floats(idx rows, idx each) { return reinterpret_cast<float*>(bytes(rows, each * idx(sizeof(float)))); }
  row_states states(idx rows, idx v_dim) {
    return row_states::at(floats(1, row_states::floats(rows, v_dim)), rows, v_dim);
  }

 private:
  unsigned char* next_;
};

/// Scores of up to `host_tile::rows` rows with the tokens of a tile, `host_tile::tokens` of them, and which of these are
/// there.
class tile_scores {
 public:
  float* scores(int row) const { return scores_ + row * host_tile::tokens; }
  /// Tokens of the tile so far, the hidden among them.
  int filled() const { return filled_; }
  bool live(int token) const { return live_ >> token & 1; }

  /// Gives tokens of the tile that are not live rows of [first, last) a row that may be read instead.
  void fill_gaps(const unsigned char** rows, int first, int last) const {
    if (first == 0 && last == host_tile::tokens && all_live()) return;
    for (int t = 0; t < host_tile::tokens; ++t)
      if (t < first || t >= last || !live(t)) rows[t] = rows[first];
  }

 protected:
  explicit tile_scores(host_arena& arena) : scores_(arena.floats(host_tile::rows, host_tile::tokens)) {}

  /// Tokens [first, first + run) are live.
  void add(int first, int run) {
    live_ |= (run == host_tile::tokens ? ~std::uint64_t(0) : (std::uint64_t(1) << run) - 1) << first;
    filled_ = first + run;
  }
  void empty() { filled_ = 0, live_ = 0; }
  /// The scores of a row, -infinity where no token is.
  float* scores_of_live(int row) const {
    float* all = scores(row);
    for (int t = 0; !all_live() && t < host_tile::tokens; ++t)
      if (!live(t)) all[t] = -__builtin_huge_valf();
    return all;
  }

 private:
  bool all_live() const { return live_ == ~std::uint64_t(0); }

  float* scores_;  // [rows][tokens]
  int filled_ = 0;
  std::uint64_t live_ = 0;
};

/// The softmax of these rows over one tile after another: scores in, weighted values added up. Values may lie in several
/// ways within one tile, as 16-bit sinks before a body do.
class tile_softmax : public tile_scores {
 public:
  static constexpr bool weighs_values = true;

  tile_softmax(const host_kernels& kernels, int v_dim, host_arena& arena)
      : tile_scores(arena),
        kernels_(kernels),
        v_dim_(v_dim),
        integers_(arena.bytes(host_tile::tokens, host_tile::integer_numbers)) {
    weights_ = arena.floats(host_tile::rows, host_tile::tokens);
    state_ = arena.states(host_tile::rows, v_dim);
    next_ = arena.floats(host_tile::rows, state_.stride);
  }

  /// For `rows` rows that have seen no key.
  void begin(int rows) {
    count_ = rows;
    state_.clear(rows);
    std::fill_n(next_, idx(rows) * state_.stride, 0.0f);  // NOTE: vectors of the output end beyond its rows
  }
  void clear() { state_.clear(count_); }

  const row_states& state() const { return state_; }
  /// Where the tile's values lie.
  tile_side& values() { return values_; }

  /// Tokens [first, first + run) of the tile are live, and their values are `codes`, where they lie or decoded.
  void take(int first, int run, plain_codes codes, bool plain) {
    add(first, run);
    if (parts_ > 0 && part_[parts_ - 1].codes == codes && part_[parts_ - 1].plain == plain)
      part_[parts_ - 1].last = filled();
    else
      part_[parts_++] = {first, filled(), codes, plain};
  }

  /// Adds the tile to the rows' states and empties it.
  void absorb() {
    if (filled() == 0) return;
    bool any = false;
    for (int r = 0; r < count_; ++r)
      any |= kernels_.weigh(scores_of_live(r), state_.maximum[r], state_.sum[r], factor_[r]);
    for (int i = 0; any && i < parts_; ++i) add_values(part_[i]);
    parts_ = 0;
    empty();
  }

 private:
  void add_values(const value_part& part) {
    const bool alone = parts_ == 1, as_they_are = part.codes.params == param_kind::none;
    value_task task;
    const unsigned char* rows[host_tile::tokens];
    std::copy_n(values_.rows, host_tile::tokens, rows);
    fill_gaps(rows, part.first, part.last);
    task.ahead = part.plain ? values_.ahead : nullptr;
    const row_params params = values_.widened(kernels_, part.codes);
    for (int r = 0; r < count_; ++r) {
      const float* from = scores(r);
      float* to = weights_ + r * host_tile::tokens;
      if (!alone) {
        for (int t = 0; t < host_tile::tokens; ++t) to[t] = t >= part.first && t < part.last ? from[t] : 0.0f;
        from = to;
      }
      constant_[r] = as_they_are ? 0.0f : kernels_.scale_weights(from, params, to);
    }
    task.weights = alone && as_they_are ? scores(0) : weights_, task.count = count_, task.rows = rows,
    task.dim = v_dim_;
    task.first = part.first, task.last = part.last, task.offset = centre_of(part.codes);
    task.factor = factor_, task.constant = constant_;
    task.from = state_.out, task.to = next_, task.stride = state_.stride;
    task.scratch = integers_;
    const auto integer = kernels_.add_integer_values[int(part.codes.codes)];
    (integer ? integer : kernels_.add_values[int(part.codes.codes)])(task);
    std::swap(state_.out, next_);
    std::fill_n(factor_, count_, 1.0f);
  }

  static constexpr int most_parts = 6;  // of three segments, each with a decoded and a plain end

  const host_kernels& kernels_;
  int v_dim_, count_ = 0;
  int parts_ = 0;
  tile_side values_;
  value_part part_[most_parts];
  unsigned char* integers_;  // for kernels of integer values
  float* weights_;           // [rows][tokens], times scales
  row_states state_;
  float* next_;  // [rows][stride], takes turns with state_.out
  float factor_[host_tile::rows];
  float constant_[host_tile::rows];
};

}  // namespace kvilt::inline KVILT_ABI::detail
