#pragma once

#include <kvilt/attention/gpu/partial_results.cuh>
#include <kvilt/attention/gpu/prefill_tiles.cuh>

namespace kvilt::inline KVILT_ABI::detail {

/// The attention of one block: of up to `rows` query rows of one item and KV head, which are far more than the few of a
/// decode step, so that arithmetic is what takes time. Scores are Q K^T and results P V, by tensor cores, query rows
/// being rows of both products; each warp has its own rows, and all share the tiles of keys and values.
template <class Task, int DimStep>
class block_of_rows {
  using tiles_type = prefill_tiles<Task, DimStep>;
  using u32 = ptx::u32;
  static constexpr u32 all = 0xffffffffu;
  static constexpr block_bytes bytes = block_bytes::of<typename Task::view_type>(DimStep);
  static constexpr int tokens = bytes.tokens, bands = bytes.bands, warp_rows_ = bytes.warp_rows();
  static constexpr int columns = tokens / 8, v_columns = bytes.v_dim / 8;
  static constexpr bool have_zeros = values_have_zeros<DimStep>(static_cast<const typename Task::view_type*>(nullptr));
  static constexpr bool keys_have_zeros = some_keys_have_zeros(static_cast<const typename Task::view_type*>(nullptr));
  static constexpr bool changes = requires(const typename Task::variant_type v, where w) { v.score(w, 0.0f); };
  using weights = weight_range<DimStep, typename Task::view_type>;
  static constexpr float lowest = -1e30f, hidden = -__builtin_huge_valf(), log2_e = 1.4426950408889634f;

 public:
  __device__ block_of_rows(const Task& task, unsigned char* memory) : task_(task), tiles_(task, memory) {}

  /// Rows [first, first + rows) of item `item`, of those that there are.
  __device__ void run(const step_item& item, int head, int first) {
    const int mine = first + warp() * warp_rows_, left = item.queries * task_.work.shape.group.value() - mine;
    if (lane() == 0)
      tiles_.share(warp()) = {rows_of(item), head, mine, left < 0 ? 0 : left < warp_rows_ ? left : warp_rows_};
    __syncwarp();
    clear();
    tiles_.sit(item, head, int(where_of(task_, rows_of(item), head, first).q_position), seen_by_warp());
    task_.view.each([&](const auto& seg) { take_segment(seg); });
    leave();
  }

 private:
  template <memory_space Space, class... Segments>
  static consteval bool some_keys_have_zeros(const view<Space, Segments...>*) {
    return ((prefill_tile<Segments, DimStep>::k_params == param_kind::scale_zero) || ...);
  }
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

  __device__ int_range seen_by_warp() const {
    const warp_share& s = share();
    if (s.count == 0) return {0x7fffffff, 0};
    return seen_by_rows(task_, s.item, s.head, s.first, s.count);
  }
  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < bands; ++m) {
#pragma unroll
      for (int n = 0; n < v_columns; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) out_[m][n][j] = 0;
#pragma unroll
      for (int h = 0; h < 2; ++h)
        row_sum_[m][2 * h] = row_sum_[m][2 * h + 1] = sum_[m][h] = zero_[have_zeros ? m : 0][h] = 0,
                        reference_[m][h] = lowest;
    }
  }

  template <class Segment>
  __device__ void take_segment(const Segment& seg) {
    using tile = prefill_tile<Segment, DimStep>;
    if (!tiles_.begin(seg)) return;
    prepare_queries(seg);
    tiles_.start(seg);
    while (tiles_.more()) {
      // Keys and values are there; those of the next tile are asked for.
      const bool whole = tiles_.next(seg, [&](position_range range) { return all_see(seg, range); });
      if (share().count == 0) continue;
      // Scores.
      float c[bands][columns][4];
      multiply_keys<tile>(c);
      // Where nothing but their unit is to be done to them, that is left to the exponent.
      const bool deferred = !tile::changes_scores && !changes && task_.scale > 1e-6f;
      if (!deferred) scale_scores<tile>(c);
      change_scores(c);
      if constexpr (tile::v_params != param_kind::none) add_logs(c);
      if (!whole) hide(seg, c);
      // Weights, relative to a maximum that is raised seldom, and their part in the results.
      weigh<tile>(c, deferred);
      multiply_values<tile>(c);
    }
  }

  /// Do all rows of the warp see all tokens of these positions, which follow each other?
  template <class Segment>
  __device__ bool all_see(const Segment& seg, position_range range) const {
    const where asked = unit().at(lane() % warp_rows_);
    bool whole = range.first < range.last && keeps_whole(task_.variant, asked, range);
    if constexpr (requires { seg.retention.sees_from(idx()); })
      whole = whole && range.first >= seg.retention.sees_from(asked.q_position);
    else
      whole = false;
    return __all_sync(all, whole || share().count == 0);
  }

  /// Queries of the warp's rows as numbers of the segment's keys, eight rows at a time: in fp16 the largest number of a row
  /// is brought to [1, 2) by a power of two, which the score's unit takes back.
  template <class Segment>
  __device__ void prepare_queries(const Segment& seg) {
    using tile = prefill_tile<Segment, DimStep>;
    constexpr auto numbers = tile::k::numbers;
    const warp_unit<Task> unit = this->unit();
    const warp_rows& x = unit.rows;
#pragma unroll 1
    for (int first = 0; first < warp_rows_; first += 8) {
      const int left = unit.count - first;
      load_queries(unit, seg, first, left < 0 ? 0 : left < 8 ? left : 8, 16 * tile::k_steps);
      const float* const row = x.row(g());
      float scale = 1;
      if constexpr (numbers == ptx::numbers::fp16) {
        float largest = 0;
        for (int i = t(); i < 16 * tile::k_steps; i += 4) largest = fmaxf(largest, fabsf(row[i]));
        scale = power_of_two_in_row(largest);
      }
      const float inverse = 1 / scale;
      float sum = 0;
      for (int chunk = t(); chunk < 2 * tile::k_steps; chunk += 4) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float a = row[8 * chunk + 2 * i] * inverse, b = row[8 * chunk + 2 * i + 1] * inverse;
          words[i] = ptx::pack<numbers>(a, b);
          if constexpr (tile::k_params == param_kind::scale_zero)
            sum += ptx::from_half(words[i]) + ptx::from_half(words[i] >> 16);
        }
        ptx::store_shared_16(tiles_.queries() + chunk_at<tile::k_pitch>(warp() * warp_rows_ + first + g(), chunk),
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
      __syncwarp();
    }
  }

  template <class Tile>
  __device__ void multiply_keys(float (&c)[bands][columns][4]) const {
    constexpr int pitch = Tile::k_pitch;
#pragma unroll
    for (int m = 0; m < bands; ++m)
#pragma unroll
      for (int n = 0; n < columns; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) c[m][n][j] = 0;
    const u32 q = tiles_.queries() + u32(warp() * warp_rows_ * pitch);
    const u32 keys = tiles_.keys();
    const u32 q_first = chunk_at<pitch>(lane() % 16, lane() / 16);
    const u32 k_first = chunk_at<pitch>(lane() / 16 * 8 + lane() % 8, lane() / 8 % 2);
#pragma unroll
    for (int p = 0; p < Tile::k_steps; ++p) {
      u32 a[bands][4];
#pragma unroll
      for (int m = 0; m < bands; ++m) ptx::load_matrices(a[m], q + u32(m * 16 * pitch) + pair_at<pitch>(q_first, p));
#pragma unroll
      for (int n = 0; n < columns; n += 2) {
        u32 b[4];
        ptx::load_matrices(b, keys + u32(n * 8 * pitch) + pair_at<pitch>(k_first, p));
#pragma unroll
        for (int m = 0; m < bands; ++m) {
          ptx::multiply_add<Tile::k::numbers>(c[m][n], a[m], b[0], b[1]);
          ptx::multiply_add<Tile::k::numbers>(c[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
  /// `body(band, half, column, number, token)` for each of the lane's scores: of row 16 x band + 8 x half + g.
  template <class Body>
  __device__ static void for_each_score(Body&& body) {
#pragma unroll
    for (int n = 0; n < columns; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int m = 0; m < bands; ++m)
#pragma unroll
          for (int h = 0; h < 2; ++h) body(m, h, n, 2 * h + i, 8 * n + 2 * t() + i);
  }
  /// `body(number, token, where)` for each of them.
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
        const int token = 8 * n + 2 * t() + i;
        const idx position = tiles_.position(token);
#pragma unroll
        for (int m = 0; m < bands; ++m)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            where w = rows[m][h];
            w.k_position = position;
            body(c[m][n][2 * h + i], token, w);
          }
      }
  }
  /// Of the scores of a row, in log2 units: the same of all where queries have no scale of their own.
  template <class Tile>
  __device__ float unit_of(int m, int h) const {
    return Tile::k::numbers == ptx::numbers::bf16 ? task_.scale * log2_e : units_[m][h];
  }
  template <class Tile>
  __device__ void scale_scores(float (&c)[bands][columns][4]) const {
    for_each_score([&](int m, int h, int n, int j, int token) {
      float& x = c[m][n][j];
      if constexpr (Tile::k_params != param_kind::none) x *= tiles_.number_of(tiles_type::k_scale, token);
      if constexpr (Tile::k_params == param_kind::scale_zero)
        x += tiles_.number_of(tiles_type::k_zero, token) * sums_[m][h];
      x *= unit_of<Tile>(m, h);
    });
  }
  __device__ void change_scores(float (&c)[bands][columns][4]) const {
    constexpr float ln_2 = 0.6931471805599453f;
    if constexpr (changes)
      for_each_pair(c, [&](float& x, int token, const where& w) {
        if (tiles_.alive(token)) x = scored(task_.variant, w, x * ln_2) * log2_e;
      });
  }
  /// The values' scales, which belong to the weights.
  __device__ void add_logs(float (&c)[bands][columns][4]) const {
    for_each_score(
        [&](int m, int, int n, int j, int token) { c[m][n][j] += tiles_.number_of(tiles_type::v_log, token); });
  }
  /// Hides what is not there, and what the variant or the retention hides. Rows that see values which are not finite, and
  /// have become zero since others do not see them, become NaN.
  template <class Segment>
  __device__ void hide(const Segment& seg, float (&c)[bands][columns][4]) const {
    for_each_pair(c, [&](float& x, int token, const where& w) {
      if (tiles_.dropped(token)) x = __int_as_float(0x7fc00000);
      const bool there = tiles_.alive(token), seen = seg.retention.sees(w.q_position, w.k_position);
      if (!there | !seen | !keeps(task_.variant, w)) x = hidden;
    });
  }

  template <class Tile>
  __device__ void weigh(float (&c)[bands][columns][4], bool deferred) {
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
    if (__any_sync(all, most > weights::most)) raise(high);
    for_each_score([&](int m, int h, int n, int j, int) {
      c[m][n][j] = ptx::exp2(fmaf(c[m][n][j], units[m][h], -reference_[m][h]));
    });
  }
  /// New references, which make the largest weights the usual ones.
  __device__ void raise(const float (&highest)[bands][2]) {
#pragma unroll
    for (int m = 0; m < bands; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float high = highest[m][h];
        high = fmaxf(high, __shfl_xor_sync(all, high, 1));
        high = fmaxf(high, __shfl_xor_sync(all, high, 2));
        const float now = fmaxf(reference_[m][h], high - weights::usual), factor = ptx::exp2(reference_[m][h] - now);
        reference_[m][h] = now;
        sum_[m][h] *= factor;
        row_sum_[m][2 * h] *= factor, row_sum_[m][2 * h + 1] *= factor;
        if constexpr (have_zeros) zero_[m][h] *= factor;
#pragma unroll
        for (int n = 0; n < v_columns; ++n) out_[m][n][2 * h] *= factor, out_[m][n][2 * h + 1] *= factor;
      }
  }
  /// Weights are rounded to 16 bits, and their sums are those of what they have become, so that a row that sees one key has
  /// that key's values: but for the small ones, which have lost more than its bits. Where weights are the values' alone,
  /// they are multiplied by ones for that.
  template <class Tile>
  __device__ void multiply_values(const float (&w)[bands][columns][4]) {
    constexpr int pitch = Tile::v_pitch;
    constexpr auto numbers = Tile::v::numbers;
    const u32 values = tiles_.values(), first = chunk_at<pitch>(lane() % 16, lane() / 16);
#pragma unroll
    for (int k = 0; k < tokens / 16; ++k) {
      u32 a[bands][4];
#pragma unroll
      for (int m = 0; m < bands; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int n = 2 * k + i / 2, h = i % 2;
          a[m][i] = ptx::pack<numbers>(w[m][n][2 * h], w[m][n][2 * h + 1]);
          if constexpr (Tile::v_params != param_kind::none) {
            const float low = as_summed<numbers>(w[m][n][2 * h], a[m][i], 0),
                        high = as_summed<numbers>(w[m][n][2 * h + 1], a[m][i], 1);
            const int token = 8 * n + 2 * t();
            sum_[m][h] += low * tiles_.number_of(tiles_type::v_inverse, token) +
                          high * tiles_.number_of(tiles_type::v_inverse, token + 1);
            if constexpr (Tile::v_params == param_kind::scale_zero)
              zero_[m][h] += low * tiles_.number_of(tiles_type::v_zero, token) +
                             high * tiles_.number_of(tiles_type::v_zero, token + 1);
          }
        }
      if constexpr (Tile::v_params == param_kind::none) {
        constexpr u32 ones = numbers == ptx::numbers::fp16 ? 0x3c003c00u : 0x3f803f80u;
#pragma unroll
        for (int m = 0; m < bands; ++m) ptx::multiply_add<numbers>(row_sum_[m], a[m], ones, ones);
      }
#pragma unroll
      for (int d = 0; d < Tile::v_steps; ++d) {
        u32 b[4];
        ptx::load_transposed(b, values + u32(k * 16 * pitch) + pair_at<pitch>(first, d));
#pragma unroll
        for (int m = 0; m < bands; ++m) {
          ptx::multiply_add<numbers>(out_[m][2 * d], a[m], b[0], b[1]);
          ptx::multiply_add<numbers>(out_[m][2 * d + 1], a[m], b[2], b[3]);
        }
      }
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
    constexpr float least = N == ptx::numbers::fp16 ? 0x1p-14f : 0;  // of all its bits
    return weight < least ? weight : number<N>(pair, which);
  }

  /// Writes the rows' results. NOTE: all of them go to shared memory before any is written, so that no register waits.
  __device__ void leave() {
    __syncthreads();
#pragma unroll
    for (int m = 0; m < bands; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float sum = sum_[m][h], zero = have_zeros ? zero_[have_zeros ? m : 0][h] : 0.0f;
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
          sum += __shfl_xor_sync(all, sum, step);
          if constexpr (have_zeros) zero += __shfl_xor_sync(all, zero, step);
        }
        sum += row_sum_[m][2 * h];
        const warp_rows x = tiles_.results(warp(), 2 * m + h);
#pragma unroll
        for (int n = 0; n < v_columns; ++n)
          *reinterpret_cast<float2*>(x.row(g()) + 8 * n + 2 * t()) = {out_[m][n][2 * h] + zero,
                                                                      out_[m][n][2 * h + 1] + zero};
        if (t() == 0) x.maximum(g()) = reference_[m][h], x.sum(g()) = sum;
      }
#pragma unroll 1
    for (int first = 0; first < share().count; first += 8)
      write_results(task_, share().item, share().head, share().first + first, min(share().count - first, 8),
                    tiles_.results(warp(), first / 8));
  }

  const Task& task_;
  tiles_type tiles_;
  float out_[bands][v_columns][4];
  // Of rows 16 x band + 8 x half + g:
  float row_sum_[bands][4];  // by the tensor cores: of all lanes' numbers
  float sum_[bands][2], reference_[bands][2], zero_[have_zeros ? bands : 1][2];
  float units_[bands][2], sums_[keys_have_zeros ? bands : 1][2];  // of scores, in log2 units; of the queries' numbers
};

}  // namespace kvilt::inline KVILT_ABI::detail
