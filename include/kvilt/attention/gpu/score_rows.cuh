#pragma once

#include <kvilt/attention/gpu/partial_results.cuh>
#include <kvilt/attention/gpu/prefill_tile.cuh>

namespace kvilt::inline KVILT_ABI::detail {

/// Does a query row at `asked` see all tokens of these positions, which follow each other?
template <class Task, class Segment>
__device__ bool sees_all(const Task& task, const Segment& seg, const where& asked, position_range range) {
  if constexpr (requires { seg.retention.sees_from(idx()); })
    return range.first < range.last && keeps_whole(task.variant, asked, range) &&
           range.first >= seg.retention.sees_from(asked.q_position);
  else
    return false;
}

/// What becomes of the scores of a warp's query rows, 16 to a band, with the tokens of a tile: the tensor cores deal them out
/// as numbers 8 n + 2 t and + 1 of rows g and g + 8 of a band, to the lane 4 g + t. `Tiles` tell of the tokens.
template <class Task, int DimStep, int Bands, int Tokens, class Tiles>
class score_rows {
 protected:
  using u32 = ptx::u32;
  static constexpr u32 all = 0xffffffffu;
  static constexpr int bands = Bands, tokens = Tokens, columns = tokens / 8, warp_rows_ = 16 * bands;
  static constexpr bool have_zeros = values_have_zeros<DimStep>(static_cast<const typename Task::view_type*>(nullptr));
  static constexpr bool keys_have_zeros =
      some_keys_have_zeros<DimStep>(static_cast<const typename Task::view_type*>(nullptr));
  static constexpr bool changes = requires(const typename Task::variant_type v, where w) { v.score(w, 0.0f); };
  using weights = weight_range<DimStep, typename Task::view_type>;
  static constexpr float lowest = -1e30f, hidden = -__builtin_huge_valf(), log2_e = 1.4426950408889634f;

  __device__ score_rows(const Task& task, unsigned char* memory) : task_(task), tiles_(task, memory) {}

  __device__ static int warp() { return int(threadIdx.x) / 32; }
  __device__ static int lane() { return int(threadIdx.x) % 32; }
  __device__ static int g() { return lane() / 4; }
  __device__ static int t() { return lane() % 4; }

  /// NOTE: in shared memory, since registers are what results and scores are short of.
  __device__ const warp_share& share() const { return tiles_.share(warp()); }
  __device__ warp_unit<Task> unit() const {
    const warp_share& s = share();
    warp_unit<Task> u{task_, tiles_.scratch(warp()), s.item};
    u.head = s.head, u.first = s.first, u.count = s.count;
    return u;
  }
  __device__ void clear_sums() {
#pragma unroll
    for (int m = 0; m < bands; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum_[m][h] = zero_[have_zeros ? m : 0][h] = 0, reference_[m][h] = lowest;
      }
  }

  /// Is nothing but their unit to be done to scores, which is then left to the exponent?
  template <class Tile>
  __device__ bool defers() const {
    return !Tile::changes_scores && !changes && task_.scale > 1e-6f;
  }
  /// From products to scores, and to weights relative to a maximum that is raised seldom: where it is, what there is of
  /// results is to be multiplied by the factors of `raised(factors)`.
  template <class Tile, class Segment, class Raised>
  __device__ void finish(const Segment& seg, float (&c)[bands][columns][4], bool whole, Raised&& raised) {
    const bool deferred = defers<Tile>();
    if (!deferred) scale_scores<Tile>(c);
    change_scores(c);
    if constexpr (Tile::v_params != param_kind::none && changes) add_logs(c);
    if (!whole) hide(seg, c);
    weigh<Tile>(c, deferred, raised);
  }

  /// Queries of the warp's rows as numbers of the segment's keys, eight rows at a time: in fp16 the largest number of a row
  /// is brought to [1, 2) by a power of two, which the score's unit takes back.
  template <class Segment>
  __device__ void prepare_queries(const Segment& seg) {
    using tile = prefill_tile<Segment, DimStep>;
    const warp_unit<Task> unit = this->unit();
#pragma unroll 1
    for (int first = 0; first < warp_rows_; first += 8) {
      const int left = unit.count - first;
      load_queries(unit, seg, first, left < 0 ? 0 : left < 8 ? left : 8, 16 * tile::k_steps);
      const float* const row = unit.rows.row(g());
      put_queries<Segment>(first, [&](int k, float(&x)[8]) {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = row[8 * (t() + 4 * k) + i];
      });
      __syncwarp();
    }
  }
  /// The same where they are not to be changed: straight from where they were given.
  template <class Segment>
  __device__ void prepare_given_queries(const Segment&) {
    using tile = prefill_tile<Segment, DimStep>;
    constexpr int chunks = 2 * tile::k_steps, of_lane = (chunks + 3) / 4;
    const warp_unit<Task> unit = this->unit();
    const int dim = task_.view.k_dim();
    const bool at_once = unit.reads_eights();
    typename Task::query_type given[2 * bands][of_lane][8];  // NOTE: all of them are on their way at once
#pragma unroll
    for (int m = 0; m < 2 * bands; ++m) {
      const int row = 8 * m + g();
      const auto* const from = unit.query(row < unit.count ? row : 0);
#pragma unroll
      for (int k = 0; k < of_lane; ++k) {
        const int d = 8 * (t() + 4 * k);
        if (row < unit.count && d < dim) {
          copy_eight(from + d, at_once, given[m][k]);
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i) store(given[m][k][i], 0.0f);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < 2 * bands; ++m)
      put_queries<Segment>(8 * m, [&](int k, float(&x)[8]) {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = kvilt::load(given[m][k][i]);
      });
  }
  /// Rows first + g of queries, of which `read(k, numbers)` gives eight numbers: those of chunk t + 4 k.
  template <class Segment, class Read>
  __device__ void put_queries(int first, Read&& read) {
    using tile = prefill_tile<Segment, DimStep>;
    constexpr auto numbers = tile::k::numbers;
    constexpr int chunks = 2 * tile::k_steps, of_lane = (chunks + 3) / 4;
    float x[of_lane][8], largest = 0, scale = 1, sum = 0;
#pragma unroll
    for (int k = 0; k < of_lane; ++k)
      if (t() + 4 * k < chunks) read(k, x[k]);
    if constexpr (numbers == ptx::numbers::fp16) {
#pragma unroll
      for (int k = 0; k < of_lane; ++k)
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (t() + 4 * k < chunks) largest = fmaxf(largest, fabsf(x[k][i]));
      scale = power_of_two_in_row(largest);
    }
    const float inverse = 1 / scale;
#pragma unroll
    for (int k = 0; k < of_lane; ++k) {
      if (t() + 4 * k >= chunks) break;
      u32 words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = ptx::pack<numbers>(x[k][2 * i] * inverse, x[k][2 * i + 1] * inverse);
        if constexpr (tile::k_params == param_kind::scale_zero)
          sum += ptx::from_half(words[i]) + ptx::from_half(words[i] >> 16);
      }
      ptx::store_shared_16(tiles_.template query_at<tile::k_pitch>(warp() * warp_rows_ + first + g(), t() + 4 * k),
                           {words[0], words[1], words[2], words[3]});
    }
    sum += __shfl_xor_sync(all, sum, 1);
    sum += __shfl_xor_sync(all, sum, 2);
#pragma unroll
    for (int m = 0; m < bands; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (16 * m + 8 * h == first) {
          units_[m][h] = scale * task_.scale * log2_e;
          if constexpr (keys_have_zeros) sums_[m][h] = sum;
        }
  }

  /// Weights [.][2 k] and on of band `m` as the first factor of a product with 16 tokens' values. They are rounded to 16
  /// bits. Sums that are added here are those of the weights as they were where `Tiles::adds_weights` says so; else of what
  /// they have become, so that a row that sees one key has that key's values: but for the small ones, which have lost more
  /// than its bits.
  template <class Tile>
  __device__ void pack_weights(const float (&w)[bands][columns][4], int m, int k, u32 (&a)[4]) {
    constexpr auto numbers = Tile::v::numbers;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = 2 * k + i / 2, h = i % 2;
      const float low = w[m][n][2 * h], high = w[m][n][2 * h + 1];
      a[i] = ptx::pack<numbers>(low, high);
      if constexpr (Tiles::adds_weights)
        add_weights<Tile>(m, n, h, low, high);
      else if constexpr (Tile::v_params != param_kind::none)
        add_weights<Tile>(m, n, h, as_summed<numbers>(low, a[i], 0), as_summed<numbers>(high, a[i], 1));
    }
  }
  template <class Tile>
  __device__ void add_weights(int m, int n, int h, float low, float high) {
    if constexpr (Tile::v_params == param_kind::none) {
      sum_[m][h] += low + high;
    } else {
      float inverse[2];
      read_pair(token_numbers::v_inverse, n, inverse);
      sum_[m][h] += low * inverse[0] + high * inverse[1];
      if constexpr (Tile::v_params == param_kind::scale_zero) {
        float zero[2];
        read_pair(token_numbers::v_zero, n, zero);
        zero_[m][h] += low * zero[0] + high * zero[1];
      }
    }
  }

  /// The sum of a row's weights, and what its values' zeros add to each number, in all four lanes that have it.
  __device__ void row_sums(int m, int h, float& sum, float& zero) const {
    sum = sum_[m][h], zero = have_zeros ? zero_[have_zeros ? m : 0][h] : 0.0f;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      sum += __shfl_xor_sync(all, sum, step);
      if constexpr (have_zeros) zero += __shfl_xor_sync(all, zero, step);
    }
  }

  const Task& task_;
  Tiles tiles_;
  // Of rows 16 x band + 8 x half + g:
  float reference_[bands][2];

 private:
  /// `body(band, half, column, number)` for each of the lane's scores: of row 16 x band + 8 x half + g.
  template <class Body>
  __device__ static void for_each_score(Body&& body) {
#pragma unroll
    for (int n = 0; n < columns; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int m = 0; m < bands; ++m)
#pragma unroll
          for (int h = 0; h < 2; ++h) body(m, h, n, 2 * h + i);
  }
  /// `body(number, n, i, where)` for each of them: of token 8 n + 2 t + i.
  template <class Body>
  __device__ void for_each_pair(float (&c)[bands][columns][4], Body&& body) const {
    where rows[bands][2];
#pragma unroll
    for (int m = 0; m < bands; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) rows[m][h] = unit().at(16 * m + 8 * h + g());
#pragma unroll
    for (int n = 0; n < columns; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const idx position = tiles_.position(8 * n + 2 * t() + i);
#pragma unroll
        for (int m = 0; m < bands; ++m)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            where w = rows[m][h];
            w.k_position = position;
            body(c[m][n][2 * h + i], n, i, w);
          }
      }
  }
  /// Of the scores of a row, in log2 units: the same of all where queries have no scale of their own.
  template <class Tile>
  __device__ float unit_of(int m, int h) const {
    return Tile::k::numbers == ptx::numbers::bf16 ? task_.scale * log2_e : units_[m][h];
  }
  /// To log2 units; where nothing else changes them, with the values' scales, which belong to the weights.
  template <class Tile>
  __device__ void scale_scores(float (&c)[bands][columns][4]) const {
#pragma unroll
    for (int n = 0; n < columns; ++n) {
      float scale[2] = {1, 1}, zero[2] = {0, 0}, log[2] = {0, 0};
      if constexpr (Tile::k_params != param_kind::none) read_pair(token_numbers::k_scale, n, scale);
      if constexpr (Tile::k_params == param_kind::scale_zero) read_pair(token_numbers::k_zero, n, zero);
      if constexpr (Tile::v_params != param_kind::none && !changes) read_pair(token_numbers::v_log, n, log);
#pragma unroll
      for (int m = 0; m < bands; ++m)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& x = c[m][n][j];
          if constexpr (Tile::k_params != param_kind::none) x *= scale[j % 2];
          if constexpr (Tile::k_params == param_kind::scale_zero) x = fmaf(zero[j % 2], sums_[m][j / 2], x);
          if constexpr (Tile::v_params != param_kind::none && !changes)
            x = fmaf(x, unit_of<Tile>(m, j / 2), log[j % 2]);
          else
            x *= unit_of<Tile>(m, j / 2);
        }
    }
  }
  /// What is said of tokens 8 n + 2 t and the next.
  __device__ void read_pair(int kind, int n, float (&x)[2]) const {
    const float2 pair = tiles_.pair_of(kind, 8 * n + 2 * t());
    x[0] = pair.x, x[1] = pair.y;
  }
  __device__ void change_scores(float (&c)[bands][columns][4]) const {
    constexpr float ln_2 = 0.6931471805599453f;
    if constexpr (changes)
      for_each_pair(c, [&](float& x, int n, int i, const where& w) {
        if (tiles_.alive(n, i)) x = scored(task_.variant, w, x * ln_2) * log2_e;
      });
  }
  __device__ void add_logs(float (&c)[bands][columns][4]) const {
#pragma unroll
    for (int n = 0; n < columns; ++n) {
      float log[2];
      read_pair(token_numbers::v_log, n, log);
#pragma unroll
      for (int m = 0; m < bands; ++m)
#pragma unroll
        for (int j = 0; j < 4; ++j) c[m][n][j] += log[j % 2];
    }
  }
  /// Hides what is not there, and what the variant or the retention hides. Rows that see values which are not finite, and
  /// have become zero since others do not see them, become NaN.
  template <class Segment>
  __device__ void hide(const Segment& seg, float (&c)[bands][columns][4]) const {
    for_each_pair(c, [&](float& x, int n, int i, const where& w) {
      if (tiles_.dropped(n, i)) x = __int_as_float(0x7fc00000);
      const bool there = tiles_.alive(n, i), seen = seg.retention.sees(w.q_position, w.k_position);
      if (!there | !seen | !keeps(task_.variant, w)) x = hidden;
    });
  }

  template <class Tile, class Raised>
  __device__ void weigh(float (&c)[bands][columns][4], bool deferred, Raised&& raised) {
    float units[bands][2], high[bands][2], most = hidden;
#pragma unroll
    for (int m = 0; m < bands; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        units[m][h] = deferred ? unit_of<Tile>(m, h) : 1.0f;
        high[m][h] = hidden;
#pragma unroll
        for (int n = 0; n < columns; ++n) high[m][h] = fmaxf(high[m][h], fmaxf(c[m][n][2 * h], c[m][n][2 * h + 1]));
        high[m][h] *= units[m][h];
        most = fmaxf(most, high[m][h] - reference_[m][h]);
      }
    if (__any_sync(all, most > weights::most)) {
      float factors[bands][2];
      raise(high, factors);
      raised(factors);
    }
    for_each_score(
        [&](int m, int h, int n, int j) { c[m][n][j] = ptx::exp2(fmaf(c[m][n][j], units[m][h], -reference_[m][h])); });
  }
  /// New references, which make the largest weights the usual ones.
  __device__ void raise(const float (&highest)[bands][2], float (&factors)[bands][2]) {
#pragma unroll
    for (int m = 0; m < bands; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float high = highest[m][h];
        high = fmaxf(high, __shfl_xor_sync(all, high, 1));
        high = fmaxf(high, __shfl_xor_sync(all, high, 2));
        const float now = fmaxf(reference_[m][h], high - weights::usual), factor = ptx::exp2(reference_[m][h] - now);
        reference_[m][h] = now, factors[m][h] = factor;
        sum_[m][h] *= factor;
        if constexpr (have_zeros) zero_[m][h] *= factor;
      }
  }

  template <ptx::numbers N>
  __device__ static float number(u32 pair, int which) {
    if constexpr (N == ptx::numbers::fp16)
      return ptx::from_half(which ? pair >> 16 : pair);
    else
      return __uint_as_float(which ? pair & 0xffff0000u : pair << 16);
  }

  /// NOTE: a NaN is not less than anything.
  template <ptx::numbers N>
  __device__ static float as_summed(float weight, u32 pair, int which) {
    constexpr float least = 0x1p-14f;  // of all bits of fp16
    if constexpr (N == ptx::numbers::fp16)
      if (weight < least) return weight;
    return number<N>(pair, which);
  }

  float sum_[bands][2], zero_[have_zeros ? bands : 1][2];
  float units_[bands][2], sums_[keys_have_zeros ? bands : 1][2];  // of scores, in log2 units; of the queries' numbers
};

}  // namespace kvilt::inline KVILT_ABI::detail
