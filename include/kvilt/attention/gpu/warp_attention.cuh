#pragma once

#include <kvilt/attention/gpu/code_traits.cuh>
#include <kvilt/attention/gpu/key_loader.cuh>
#include <kvilt/attention/gpu/rows.cuh>
#include <kvilt/gpu/gpu.cuh>

namespace kvilt::inline KVILT_ABI::detail {

/// The attention of one warp: of a share of the line, one KV head, `8 x Groups` query rows at a time.
///
/// Scores are K Q^T and results V^T P^T, by tensor cores, 16 tokens a step: tokens are the rows of the one product and
/// the columns of the other, so that a group of query heads wastes nothing. Scales of a token never touch its numbers:
/// K's multiply the scores, V's the weights, in whose maximum they have a part, so that weights fit 16 bits.
template <class Task, int DimStep, int Groups>
class warp_attention {
  using view_type = typename Task::view_type;
  using u32 = ptx::u32;
  static constexpr int rows = 8 * Groups, tokens = work_shape::tokens;
  static constexpr u32 all = 0xffffffffu;

 public:
  /// `memory`: [memory_bytes()] of this warp's own.
  __device__ warp_attention(const Task& task, unsigned char* memory)
      : task_(task),
        lane_(int(threadIdx.x) % 32),
        g_(lane_ / 4),
        t_(lane_ % 4),
        state_(*reinterpret_cast<loader_state*>(memory)),
        rows_{reinterpret_cast<float*>(memory + warp_bytes::state), row_stride,
              reinterpret_cast<float*>(memory + warp_bytes::state) + 8 * row_stride},
        queries_(ptx::shared_address(memory) + warp_bytes::state + rows_bytes),
        decoded_(queries_ + query_bytes),
        ring_(decoded_ + decoded_bytes),
        slot_(ring_),
        waited_(!task.early) {}

  KVILT_HD static constexpr int memory_bytes() {
    return warp_bytes::of<view_type>(DimStep).total(most_stages(), query_bytes);
  }

  /// Rows [first_row, first_row + rows) of every unit of team `team`'s share.
  __device__ void run(const team_share& share, int team, int head_of_team, int first_row) {
    key_loader<Task, DimStep> loader(task_, state_, share, head_of_team, first_row, rows);
    slot_ = ring_;
    primed_ = false;
    unit_seat seat = share.seat;
    for (idx at = share.at; at < share.end;) {
      if (at != share.at) seat = seat_at(task_.work, task_.items, at, share.end, seat.item);
      at += seat.end - seat.step;
      const int count = seat.rows_from(first_row, rows);
      if (count == 0) continue;
      attend(seat, seat.head + head_of_team, first_row, count, loader);
      wait_once();
      leave(seat, team, head_of_team, first_row, count);
    }
    ptx::wait_copies<0>();
  }

 private:
  template <class Format>
  using traits = code_traits<Format, DimStep>;

  /// Blocks of 16 numbers of a result, of the segment that has most.
  template <memory_space Space, class... Segments>
  static consteval int most_blocks(const view<Space, Segments...>*) {
    int most = 0;
    ((most = larger(most, traits<typename Segments::v_format>::blocks * traits<typename Segments::v_format>::spread)),
     ...);
    return most;
  }
  static constexpr int blocks = most_blocks(static_cast<const view_type*>(nullptr));

  static constexpr int stage_bytes = warp_bytes::of<view_type>(DimStep).stage;
  static constexpr int decoded_bytes = warp_bytes::of<view_type>(DimStep).decoded;
  static constexpr int rows_bytes = warp_bytes::of<view_type>(DimStep).rows;
  static constexpr int row_stride = rows_bytes / (8 * int(sizeof(float))) - device_row_notes;

  template <class Segment>
  static consteval int terms() {
    return query_terms<Task, traits<typename Segment::k_format>>();
  }
  template <memory_space Space, class... Segments>
  static consteval int most_factors(const view<Space, Segments...>*) {
    int most = 0;
    ((most = int(larger(most, traits<typename Segments::k_format>::products * terms<Segments>()))), ...);
    return most;
  }
  /// Registers of a query's factors, and whether they are kept in shared memory instead.
  static constexpr int factors = 2 * Groups * most_factors(static_cast<const view_type*>(nullptr));
  static constexpr bool queries_in_memory = factors + 4 * Groups * blocks > 100;
  static constexpr int query_bytes = queries_in_memory ? 128 * factors : 0;
  static consteval int most_stages() {
    int stages = work_shape::most_stages;
    while (stages > 2 &&
           warp_bytes::of<view_type>(DimStep).total(stages, query_bytes) > warp_budget<view_type>(DimStep, rows))
      --stages;
    return stages;
  }

  static constexpr int stages = most_stages();

  /// Queries as factors of the scores: `Terms` 16-bit numbers each, whose sum they are.
  template <int Products, int Terms>
  struct query_factors {
    static constexpr int kept = queries_in_memory ? 1 : Products;
    u32 pairs[Terms][kept][Groups][2];  // where they are not in shared memory
    float unit[Groups][2];              // of the scores of query rows 2t and 2t + 1, in log2 units
    float sum[Groups][2];               // of their numbers, in that unit
  };
  __device__ u32 factor_at(int index) const { return queries_ + u32((index * 32 + lane_) * 8); }
  template <int Products, int Terms>
  __device__ void set_factor(query_factors<Products, Terms>& q, int term, int p, int n, const u32 (&pair)[2]) const {
    if constexpr (queries_in_memory)
      ptx::store_shared_8(factor_at((term * Products + p) * Groups + n), pair);
    else
      q.pairs[term][p][n][0] = pair[0], q.pairs[term][p][n][1] = pair[1];
  }
  template <int Products, int Terms>
  __device__ void get_factor(const query_factors<Products, Terms>& q, int term, int p, int n, u32 (&pair)[2]) const {
    if constexpr (queries_in_memory)
      ptx::load_shared_8(pair, factor_at((term * Products + p) * Groups + n));
    else
      pair[0] = q.pairs[term][p][n][0], pair[1] = q.pairs[term][p][n][1];
  }

  __device__ void attend(unit_seat seat, int head, int first_row, int count, key_loader<Task, DimStep>& loader) {
    clear();
    const step_item& item = task_.items[seat.item];
    item_ = &item;
    head_ = seat.head = head;
    first_ = seat.first_row + first_row;
    count_ = count;
    // The row about which this lane asks the variant, for all lanes.
    asked_ = where_of(task_, item, head_, first_ + (lane_ % rows < count ? lane_ % rows : 0));
    const position_range seen = seen_by_rows(task_, item, head_, first_, count);
    int which = 0;
    task_.view.each([&](const auto& seg) {
      const step_range run = run_of(task_, item, seat, which++, seen);
      if (run.first < run.last) attend_run(seg, run, loader);
    });
  }

  /// For units without keys too, since others may still be at work on what results overwrite.
  __device__ void wait_once() {
    if (!waited_) wait_for_earlier_kernels(), let_next_kernel_start();
    waited_ = true;
  }

  __device__ void clear() {
#pragma unroll
    for (int n = 0; n < Groups; ++n) {
#pragma unroll
      for (int i = 0; i < blocks; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) out_[i][n][j] = 0;
#pragma unroll
      for (int k = 0; k < 2; ++k) sum_[n][k] = zero_[n][k] = 0, reference_[n][k] = lowest;
    }
    spread_ = 0;
  }

  template <class Segment>
  __device__ void attend_run(const Segment& seg, step_range run, key_loader<Task, DimStep>& loader) {
    using k = traits<typename Segment::k_format>;
    using v = traits<typename Segment::v_format>;
    query_factors<k::products, terms<Segment>()> q;
    static_scales fixed;
    // NOTE: a share's first steps only fill the ring: in the loop, so that there is one copy of the code that does.
    int step = run.first - (primed_ ? 0 : stages);
    primed_ = true;
#pragma unroll 1
    for (; step < run.last; ++step) {
      if (step == run.first) {
        wait_once();
        prepare(seg, q);
        reorder<v::spread>();
        fixed = static_scales_of(seg);
      }
      if (step >= run.first) {
        ptx::wait_copies<stages - 1>();
        __syncwarp();
        take(seg, step, q, fixed);
        __syncwarp();
      }
      loader.issue(slot_, waited_);
      slot_ += u32(stage_bytes);
      if (slot_ == ring_ + u32(stages * stage_bytes)) slot_ = ring_;
    }
  }

  /// Numbers of query row g of group `n` that are this lane's, of words t of the chunks, as this segment's keys want them.
  template <class Segment, int Words, int Spread>
  __device__ void query_numbers(const Segment& seg, int n, float (&x)[Words][2 * Spread]) const {
    using number = typename Task::query_type;
    using k = traits<typename Segment::k_format>;
    const int dim = task_.view.k_dim(), row = 8 * n + g_;
    if (queries_as_given<Task>() && in_eights(task_.q)) {
      const where w = where_of(task_, *item_, head_, first_ + (row < count_ ? row : 0));
      const number* const from = task_.q.at(item_->q_row + w.q_index, w.q_head);
#pragma unroll
      for (int i = 0; i < Words; ++i) {
        const int d = (i * 4 + t_) * 2 * Spread;
        number numbers[2 * Spread] = {};
        if (row < count_ && d < dim) load_aligned(from + d, numbers);
#pragma unroll
        for (int j = 0; j < 2 * Spread; ++j) x[i][j] = load(numbers[j]);
      }
    } else {
      const int left = count_ - 8 * n;
      load_queries(task_, seg, *item_, head_, first_ + 8 * n, left < 0 ? 0 : left < 8 ? left : 8, k::dim, rows_);
#pragma unroll
      for (int i = 0; i < Words; ++i)
#pragma unroll
        for (int j = 0; j < 2 * Spread; ++j) {
          const int d = (i * 4 + t_) * 2 * Spread + j;
          x[i][j] = d < dim ? rows_.row(g_)[d] : 0.0f;
        }
    }
  }

  /// Queries of the unit as this segment's keys want them.
  template <class Segment, int Products, int Terms>
  __device__ void prepare(const Segment& seg, query_factors<Products, Terms>& q) {
    using k = traits<typename Segment::k_format>;
    constexpr float log2_e = 1.4426950408889634f;
#pragma unroll
    for (int n = 0; n < Groups; ++n) {
      // Words t of the chunks of 16 bytes that a key has: codes i and i + spread of a word are a pair.
      constexpr int words = 2 * k::blocks;
      float x[words][2 * k::spread];
      query_numbers<Segment, words, k::spread>(seg, n, x);
      // In fp16 the largest number of a row is brought to [1, 2): a power of two, which the score's unit takes back.
      float unit = 1;
      if constexpr (k::numbers == ptx::numbers::fp16) {
        float largest = 0;
#pragma unroll
        for (int i = 0; i < words; ++i)
#pragma unroll
          for (int j = 0; j < 2 * k::spread; ++j) largest = fmaxf(largest, fabsf(x[i][j]));
        largest = fmaxf(largest, __shfl_xor_sync(all, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(all, largest, 2));
        const int exponent = int(__float_as_uint(largest) >> 23) - 127;
        unit = __uint_as_float(u32(127 + (exponent < -100 ? -100 : exponent > 100 ? 100 : exponent)) << 23);
      }
      const float inverse = 1 / unit;
      float sum = 0;
#pragma unroll
      for (int p = 0; p < Products; ++p) {
        u32 pair[2], rest[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float a = x[2 * (p / k::spread) + h][p % k::spread] * inverse;
          const float b = x[2 * (p / k::spread) + h][p % k::spread + k::spread] * inverse;
          pair[h] = ptx::pack<k::numbers>(a, b);
          if constexpr (Terms == 2) rest[h] = ptx::pack_rest<k::numbers>(a, b, pair[h]);
          if constexpr (k::params() == param_kind::scale_zero)
            sum += ptx::from_half(pair[h]) + ptx::from_half(pair[h] >> 16);
        }
        set_factor(q, 0, p, n, pair);
        if constexpr (Terms == 2) set_factor(q, 1, p, n, rest);
      }
      if constexpr (k::params() == param_kind::scale_zero) {
        sum += __shfl_xor_sync(all, sum, 1);
        sum += __shfl_xor_sync(all, sum, 2);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        q.unit[n][i] = __shfl_sync(all, unit, 4 * (2 * t_ + i)) * (task_.scale * log2_e);
        q.sum[n][i] = __shfl_sync(all, sum, 4 * (2 * t_ + i));
      }
    }
    __syncwarp();
  }

  /// Scales that the caller gave.
  struct static_scales {
    float k = 1, v = 1;
  };
  template <class Segment>
  __device__ static_scales static_scales_of(const Segment& seg) const {
    static_scales s;
    if constexpr (traits<typename Segment::k_format>::params() == param_kind::scale32)
      s.k = read<float>(seg.planes.k_params.at({}, head_, 0));
    if constexpr (traits<typename Segment::v_format>::params() == param_kind::scale32)
      s.v = read<float>(seg.planes.v_params.at({}, head_, 0));
    return s;
  }

  /// Scores of tokens g and g + 8 with query rows 2t and 2t + 1 of each group.
  using scores = float[Groups][4];

  template <class Segment, int Products, int Terms>
  __device__ void take(const Segment& seg, int step, const query_factors<Products, Terms>& q, static_scales fixed) {
    using k = traits<typename Segment::k_format>;
    using v = traits<typename Segment::v_format>;
    using tile = device_tile<Segment>;
    u32 keys = slot_ + tile::notes, values = keys + (k::decoded ? 0 : tokens * k::pitch);
    u32 decoded = decoded_;
    if constexpr (k::decoded) keys = decoded, decoded += 2 * tokens * k::pitch;
    if constexpr (v::decoded) values = decoded;
    if constexpr (k::decoded || v::decoded) decode(seg, step, keys, values);
    scores c;
    multiply_keys<Segment>(keys, q, c);
    const u32 alive = ptx::load_shared_4(slot_ + slot_notes::alive);
    weigh(seg, q, fixed, alive, values, c);
  }

  /// Keys times queries.
  template <class Segment, int Products, int Terms>
  __device__ void multiply_keys(u32 keys, const query_factors<Products, Terms>& q, scores& c) const {
    using k = traits<typename Segment::k_format>;
    constexpr int chains = Groups == 1 ? 2 : 1;  // of sums that wait for each other
    float sums[chains][Groups][4];
#pragma unroll
    for (int i = 0; i < chains; ++i)
#pragma unroll
      for (int n = 0; n < Groups; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][n][j] = 0;
    const u32 first = chunk_at<k::pitch>(lane_ % 16, lane_ / 16);
#pragma unroll
    for (int plane = 0; plane < (k::decoded ? 2 : 1); ++plane) {
#pragma unroll
      for (int block = 0; block < k::blocks; ++block) {
        u32 m[4], a[4][k::spread];
        ptx::load_matrices(m, keys + plane * tokens * k::pitch + pair_at<k::pitch>(first, block));
#pragma unroll
        for (int i = 0; i < 4; ++i) unpack<k::kind(), k::offset()>(m[i], a[i]);
#pragma unroll
        for (int i = 0; i < k::spread; ++i) {
          const u32 factor[4] = {a[0][i], a[1][i], a[2][i], a[3][i]};
          const int p = block * k::spread + i;
#pragma unroll
          for (int n = 0; n < Groups; ++n)
#pragma unroll
            for (int term = 0; term < (plane == 0 ? Terms : 1); ++term) {
              u32 pair[2];
              get_factor(q, term, p, n, pair);
              ptx::multiply_add<k::numbers>(sums[p % chains][n], factor, pair[0], pair[1]);
            }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int j = 0; j < 4; ++j) c[n][j] = chains == 2 ? sums[0][n][j] + sums[chains - 1][n][j] : sums[0][n][j];
  }

  /// A token's params as floats.
  struct token_params {
    float scale = 1, zero = 0;
  };
  template <param_kind Kind>
  __device__ token_params params_of(int number, u32 upper) const {
    token_params p;
    if constexpr (Kind == param_kind::scale16 || Kind == param_kind::scale_zero) {
      const u32 word = ptx::load_shared_4(slot_ + slot_notes::params + 4u * u32(number));
      const u32 shift = Kind == param_kind::scale16 ? (upper >> number & 1) * 16 : 0;
      p.scale = ptx::from_half(word >> shift);
      if constexpr (Kind == param_kind::scale_zero) p.zero = ptx::from_half(word >> 16);
    }
    return p;
  }

  /// From products to weights, and their part in the results.
  template <class Segment, int Products, int Terms>
  __device__ void weigh(const Segment& seg, const query_factors<Products, Terms>& q, static_scales fixed, u32 alive,
                        u32 values, scores& c) {
    using k = traits<typename Segment::k_format>;
    using v = traits<typename Segment::v_format>;
    u32 upper = 0;
    if constexpr (k::params() == param_kind::scale16 || v::params() == param_kind::scale16)
      upper = ptx::load_shared_4(slot_ + slot_notes::upper);
    float v_log[2] = {0, 0}, v_inverse[2] = {1, 1}, v_zero[2] = {0, 0};  // of tokens g and g + 8
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      token_params key = params_of<k::params()>(g_ + 8 * h, upper);
      token_params value = params_of<v::params()>(16 + g_ + 8 * h, upper);
      if constexpr (k::params() == param_kind::scale32) key.scale = fixed.k;
      if constexpr (v::params() == param_kind::scale32) value.scale = fixed.v;
#pragma unroll
      for (int n = 0; n < Groups; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& s = c[n][2 * h + i];
          if constexpr (k::params() != param_kind::none) s *= key.scale;
          if constexpr (k::params() == param_kind::scale_zero) s += key.zero * q.sum[n][i];
          s *= q.unit[n][i];
        }
      if constexpr (v::params() != param_kind::none) {
        v_log[h] = ptx::log2(value.scale);
        v_inverse[h] = ptx::inverse(value.scale);
        v_zero[h] = value.zero * v_inverse[h];
      }
    }
    change_scores(c);
    if constexpr (v::params() != param_kind::none) add_logs(c, v_log);
    const bool masked = mask(seg, alive, values, c);

    // Weights, relative to a maximum that is raised seldom: no more than 2^6, so that they fit 16 bits.
    float w[Groups][4], most = -__builtin_huge_valf();
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        w[n][j] = c[n][j] - reference_[n][j & 1];
        most = fmaxf(most, w[n][j]);
      }
    if (__any_sync(all, most > 6.0f)) {
      raise(c);
#pragma unroll
      for (int n = 0; n < Groups; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) w[n][j] = c[n][j] - reference_[n][j & 1];
    }
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int j = 0; j < 4; ++j) w[n][j] = ptx::exp2(w[n][j]);
    // NOTE: a token that is hidden may have a scale that is NaN.
    if (v::params() != param_kind::none && masked)
      add_weights<true, v::params()>(w, v_inverse, v_zero);
    else
      add_weights<false, v::params()>(w, v_inverse, v_zero);
    multiply_values<Segment>(values, w);
  }

  /// To the sums, weights without the values' scales.
  template <bool Masked, param_kind Params>
  __device__ void add_weights(const float (&w)[Groups][4], const float (&v_inverse)[2], const float (&v_zero)[2]) {
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool counts = !Masked || w[n][j] != 0;
        if constexpr (Params == param_kind::none)
          sum_[n][j & 1] += w[n][j];
        else
          sum_[n][j & 1] += counts ? w[n][j] * v_inverse[j / 2] : 0.0f;
        if constexpr (Params == param_kind::scale_zero) zero_[n][j & 1] += counts ? w[n][j] * v_zero[j / 2] : 0.0f;
      }
  }

  __device__ void change_scores(scores& c) const {
    constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;
    constexpr bool changes = requires(where w) {
      task_.variant.score(w, 0.0f);
    };
    if constexpr (changes)
      for_each_pair([&](int n, int j, where w) { c[n][j] = scored(task_.variant, w, c[n][j] * ln_2) * log2_e; });
  }

  /// `body(group, number, where)` for each of the lane's scores.
  template <class Body>
  __device__ void for_each_pair(Body&& body) const {
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = 8 * n + 2 * t_ + i;
        where w = where_of(task_, *item_, head_, first_ + (row < count_ ? row : 0));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          w.k_position = position(g_ + 8 * h);
          body(n, 2 * h + i, w);
        }
      }
  }
  __device__ idx position(int token) const {
    return int(ptx::load_shared_4(slot_ + slot_notes::positions + 4u * u32(token)));
  }

  /// Hides what is not there, and what the variant or the retention hides. True where there is such.
  template <class Segment>
  __device__ bool mask(const Segment& seg, u32 alive, u32 values, scores& c) const {
    constexpr bool ordered = Segment::retention_type::ordered;
    bool whole = alive == 0xffffu;
    const position_range range{position(0), position(tokens - 1) + 1};
    const bool kept =
        ordered && keeps_whole(task_.variant, asked_, range) && sees_whole(seg.retention, asked_.q_position, range);
    whole = __all_sync(all, whole && kept);
    if (whole) return false;
    bool seen[2] = {false, false};
    for_each_pair([&](int n, int j, const where& w) {
      const bool there = alive >> (g_ + 8 * (j / 2)) & 1;
      const bool shown = there && seg.retention.sees(w.q_position, w.k_position) && keeps(task_.variant, w);
      if (!shown) c[n][j] = -__builtin_huge_valf();
      seen[j / 2] |= shown && 8 * n + 2 * t_ + j % 2 < count_;
    });
    // Values that no query sees are zero: 0 x NaN is NaN.
    u32 seen_by_any = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      u32 lanes = __ballot_sync(all, seen[h]);
      lanes |= lanes >> 1, lanes |= lanes >> 2;
      for (int token = 0; token < 8; ++token) seen_by_any |= (lanes >> (4 * token) & 1) << (token + 8 * h);
    }
    using v = traits<typename Segment::v_format>;
    for (u32 hidden = alive & ~seen_by_any; hidden; hidden &= hidden - 1) {
      const u32 row = values + u32((__ffs(int(hidden)) - 1) * v::pitch);
      for (int chunk = lane_; chunk < (v::decoded ? 2 : 1) * v::pitch / 16; chunk += 32) {
        const int plane = chunk / (v::pitch / 16), in_row = chunk % (v::pitch / 16);
        ptx::store_shared_16(row + u32(plane * tokens * v::pitch + in_row * 16), {});
      }
    }
    __syncwarp();
    return true;
  }
  template <class Retention>
  __device__ static bool sees_whole(const Retention& retention, idx q_position, position_range range) {
    if constexpr (requires { retention.sees_from(q_position); })
      return range.first >= retention.sees_from(q_position);
    else
      return false;
  }

  /// The values' scales, which belong to the weights.
  __device__ static void add_logs(scores& c, const float (&v_log)[2]) {
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int j = 0; j < 4; ++j) c[n][j] += v_log[j / 2];
  }

  /// A new reference, which makes the largest weight 2^4.
  __device__ void raise(const scores& c) {
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float high = fmaxf(c[n][i], c[n][2 + i]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) high = fmaxf(high, __shfl_xor_sync(all, high, step));
        const float now = fmaxf(reference_[n][i], high - 4.0f);
        const float factor = ptx::exp2(reference_[n][i] - now);
        reference_[n][i] = now;
        sum_[n][i] *= factor;
        zero_[n][i] *= factor;
#pragma unroll
        for (int b = 0; b < blocks; ++b) out_[b][n][i] *= factor, out_[b][n][2 + i] *= factor;
      }
  }

  /// Weights times values.
  template <class Segment>
  __device__ void multiply_values(u32 values, const float (&w)[Groups][4]) {
    using v = traits<typename Segment::v_format>;
    constexpr int terms = v::numbers == ptx::numbers::bf16 ? 2 : 1;
    u32 p[terms][Groups][2];
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const u32 packed = ptx::pack<v::numbers>(w[n][2 * h], w[n][2 * h + 1]);
        p[0][n][h] = ptx::transpose(packed);
        if constexpr (terms == 2)
          p[1][n][h] = ptx::transpose(ptx::pack_rest<v::numbers>(w[n][2 * h], w[n][2 * h + 1], packed));
      }
    const u32 first = chunk_at<v::pitch>(lane_ / 16 * 8 + lane_ % 8, lane_ / 8 % 2);
#pragma unroll
    for (int plane = 0; plane < (v::decoded ? 2 : 1); ++plane) {
#pragma unroll
      for (int block = 0; block < v::blocks; ++block) {
        u32 m[4];
        ptx::load_transposed(m, values + plane * tokens * v::pitch + pair_at<v::pitch>(first, block));
        u32 a[4][v::spread];
#pragma unroll
        for (int i = 0; i < 4; ++i) unpack<v::kind(), v::offset()>(m[i], a[i]);
#pragma unroll
        for (int i = 0; i < v::spread; ++i) {
          const u32 factor[4] = {a[0][i], a[1][i], a[2][i], a[3][i]};
#pragma unroll
          for (int n = 0; n < Groups; ++n)
#pragma unroll
            for (int term = 0; term < (plane == 0 ? terms : 1); ++term)
              ptx::multiply_add<v::numbers>(out_[block * v::spread + i][n], factor, p[term][n][0], p[term][n][1]);
        }
      }
    }
  }

  /// Decodes the step's rows, as pairs of bfloat16 whose sum they are: a plane of the first, and one of the second.
  template <class Segment>
  __device__ void decode(const Segment& seg, int step, u32 keys, u32 values) const {
    using k = traits<typename Segment::k_format>;
    using v = traits<typename Segment::v_format>;
    const lengths n = item_->n;
    const int token = lane_ % tokens;
    const u32 alive = ptx::load_shared_4(slot_ + slot_notes::alive);
    const idx count = seg.retention.count(n, item_->sequence, head_);
    const int skipped = int(seg.retention.at(n, item_->sequence, head_, 0).slot % tokens);
    const idx i = smaller(larger(idx(step) * tokens - skipped + token, 0), count - 1);
    place p;
    if (alive >> token & 1)
      p = seg.layout.locate(item_->sequence, head_, seg.retention.at(n, item_->sequence, head_, i).slot);
    if constexpr (k::decoded)
      decode_rows<k::pitch, k::dim>(seg.k, keys, alive, [&](int from) { return seg.k_row(place_of(p, from), head_); });
    if constexpr (v::decoded)
      decode_rows<v::pitch, v::dim>(seg.v, values, alive,
                                    [&](int from) { return seg.v_row(place_of(p, from), head_); });
    __syncwarp();
  }
  __device__ static place place_of(const place& p, int lane) {
    return {idx(__shfl_sync(all, static_cast<long long>(p.page), lane)), __shfl_sync(all, p.row, lane), 1};
  }
  template <int Pitch, int Dim, class Format, class RowOf>
  __device__ void decode_rows(const Format& f, u32 to, u32 alive, RowOf row_of) const {
    constexpr int chunks = Pitch / 16;
#pragma unroll 1
    for (int i = lane_; i < tokens * chunks; i += 32) {
      const int row = i / chunks, chunk = i % chunks;
      const row_ref from = row_of(row);
      float x[8] = {};
      if ((alive >> row & 1) && 8 * chunk < f.dim()) f.template decode<8>(from, 8 * chunk, x);
      uint4 first, rest;
      first.x = ptx::pack<ptx::numbers::bf16>(x[0], x[1]), first.y = ptx::pack<ptx::numbers::bf16>(x[2], x[3]);
      first.z = ptx::pack<ptx::numbers::bf16>(x[4], x[5]), first.w = ptx::pack<ptx::numbers::bf16>(x[6], x[7]);
      rest.x = ptx::pack_rest<ptx::numbers::bf16>(x[0], x[1], first.x),
      rest.y = ptx::pack_rest<ptx::numbers::bf16>(x[2], x[3], first.y);
      rest.z = ptx::pack_rest<ptx::numbers::bf16>(x[4], x[5], first.z),
      rest.w = ptx::pack_rest<ptx::numbers::bf16>(x[6], x[7], first.w);
      const u32 at = to + chunk_at<Pitch>(row, chunk);
      ptx::store_shared_16(at, first);
      ptx::store_shared_16(at + tokens * Pitch, rest);
    }
  }

  /// Which of a row's numbers number `i` of block `b` is, of those in a lane's `out_`; more than the row has beyond it.
  __device__ int number_of(int spread, int block, int upper) const {
    return (2 * (block / spread) + upper) * 8 * spread + g_ * spread + block % spread;
  }

  /// The order of `out_`, which is known where there is but one.
  __device__ int spread() const {
    if constexpr (view_type::segments == 1)
      return traits<typename std::remove_cvref_t<decltype(task_.view.first())>::v_format>::spread;
    else
      return spread_ ? spread_ : 1;
  }

  /// Results of group `n` as rows.
  __device__ void to_rows(int n) {
    const int dim = task_.view.v_dim(), spread = this->spread();
    __syncwarp();
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int d = number_of(spread, b, j / 2);
        if (d < dim) rows_.row(2 * t_ + j % 2)[d] = out_[b][n][j] + zero_[n][j % 2];
      }
    __syncwarp();
  }

  /// Results in the order in which a segment of another kind of codes has its numbers.
  template <int Spread>
  __device__ void reorder() {
    if constexpr (view_type::segments > 1) {
      if (spread_ != 0 && spread_ != Spread) {
        const int dim = task_.view.v_dim();
#pragma unroll
        for (int n = 0; n < Groups; ++n) {
          const float zeros[2] = {zero_[n][0], zero_[n][1]};
          zero_[n][0] = zero_[n][1] = 0;
          to_rows(n);
#pragma unroll
          for (int b = 0; b < blocks; ++b)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const int d = number_of(Spread, b, j / 2);
              out_[b][n][j] = d < dim ? rows_.row(2 * t_ + j % 2)[d] : 0.0f;
            }
          zero_[n][0] = zeros[0], zero_[n][1] = zeros[1];
        }
        __syncwarp();
      }
    }
    spread_ = Spread;
  }

  /// Writes the unit's results, or the part of them that is this team's.
  __device__ void leave(const unit_seat& seat, int team, int head_of_team, int first_row, int count) {
#pragma unroll
    for (int n = 0; n < Groups; ++n) {
      if (8 * n >= count) break;
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
          sum_[n][i] += __shfl_xor_sync(all, sum_[n][i], step);
          zero_[n][i] += __shfl_xor_sync(all, zero_[n][i], step);
        }
      to_rows(n);
      if (g_ == 0)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          rows_.maximum(2 * t_ + i) = reference_[n][i];
          rows_.sum(2 * t_ + i) = sum_[n][i];
        }
      __syncwarp();
      const int here = count - 8 * n < 8 ? count - 8 * n : 8;
      if (seat.whole())
        write_results(task_, *item_, head_, first_ + 8 * n, here, rows_);
      else
        write_piece(task_.piece(team, seat.step > 0, head_of_team), first_row + 8 * n, here);
    }
  }
  __device__ void write_piece(float* piece, int first, int count) const {
    const int stride = task_.v_stride(), all_rows = task_.work.shape.rows;
    for (int r = 0; r < count; ++r)
      for (int d = 4 * lane_; d < stride; d += 128)
        *reinterpret_cast<float4*>(piece + idx(first + r) * stride + d) = *reinterpret_cast<float4*>(rows_.row(r) + d);
    if (lane_ < count) {
      piece[idx(all_rows) * stride + first + lane_] = rows_.maximum(lane_);
      piece[idx(all_rows) * (stride + 1) + first + lane_] = rows_.sum(lane_);
    }
    __syncwarp();
  }

  static constexpr float lowest = -1e30f;  // below every score, and finite: what is hidden has weight 0 beside it

  const Task& task_;
  int lane_, g_, t_;  // g and t: as the tensor cores' fragments are dealt out
  loader_state& state_;
  warp_rows rows_;
  u32 queries_, decoded_, ring_, slot_;

  const step_item* item_ = nullptr;
  int head_ = 0, first_ = 0, count_ = 0;
  where asked_;
  float out_[blocks][Groups][4];  // numbers by number_of, of query rows 2t and 2t + 1
  float sum_[Groups][2], zero_[Groups][2], reference_[Groups][2];
  int spread_ = 0;
  bool primed_ = false;
  bool waited_;  // for the kernels before this one
};

}  // namespace kvilt::inline KVILT_ABI::detail
