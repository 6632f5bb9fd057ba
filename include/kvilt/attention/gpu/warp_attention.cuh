#pragma once

#include <kvilt/attention/gpu/code_traits.cuh>
#include <kvilt/attention/gpu/decoded_rows.cuh>
#include <kvilt/attention/gpu/key_loader.cuh>
#include <kvilt/attention/gpu/partial_results.cuh>
#include <kvilt/attention/gpu/query_factors.cuh>
#include <kvilt/gpu/gpu.cuh>

namespace kvilt::inline KVILT_ABI::detail {

/// The attention of one warp: of a share of the line, one KV head, `8 x Groups` query rows at a time.
///
/// Scores are K Q^T and results V^T P^T, by tensor cores, 16 tokens a step: tokens are rows of the one product and columns
/// of the other, so that a group of query heads wastes nothing. Scales of a token never touch its numbers: K's multiply
/// the scores, V's the weights, in whose maximum they have a part, so that weights fit 16 bits.
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
        state_(*reinterpret_cast<loader_state*>(memory)),
        unit_{task,
              {reinterpret_cast<float*>(memory + warp_bytes::state), row_stride,
               reinterpret_cast<float*>(memory + warp_bytes::state) + 8 * row_stride}},
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
      if (at != share.at) seat = loader.seat_from(at, seat.item);
      at += seat.end - seat.step;
      const int count = seat.rows_from(first_row, rows);
      if (count == 0) continue;
      attend(seat, seat.head + head_of_team, first_row, count, loader);
      end_early_reads(waited_);  // for units without keys too: others may still read what results overwrite
      results_.leave(unit_, seat, team, head_of_team, first_row);
    }
    ptx::wait_copies<0>();
  }

 private:
  template <class Format>
  using traits = code_traits<Format, DimStep>;

  static constexpr int stage_bytes = warp_bytes::of<view_type>(DimStep).stage;
  static constexpr int decoded_bytes = warp_bytes::of<view_type>(DimStep).decoded;
  static constexpr int rows_bytes = warp_bytes::of<view_type>(DimStep).rows;
  static constexpr int row_stride = rows_bytes / (8 * int(sizeof(float))) - device_row_notes;

  using results = partial_results<Task, DimStep, Groups>;
  /// Registers of queries, and whether these are kept in shared memory instead.
  static constexpr int factors = factor_registers<Task, DimStep, Groups>(static_cast<const view_type*>(nullptr));
  static constexpr bool queries_in_memory = factors + 4 * Groups * results::blocks > 100;
  static constexpr int query_bytes = queries_in_memory ? 128 * factors : 0;
  static consteval int most_stages() {
    int stages = work_shape::most_stages;
    while (stages > 2 &&
           warp_bytes::of<view_type>(DimStep).total(stages, query_bytes) > warp_budget<view_type>(DimStep, rows))
      --stages;
    return stages;
  }

  static constexpr int stages = most_stages();
  template <class Segment>
  using queries = query_factors<Task, DimStep, Groups, Segment, queries_in_memory>;

  __device__ void attend(unit_seat seat, int head, int first_row, int count, key_loader<Task, DimStep>& loader) {
    const step_item& item = task_.items[seat.item];
    unit_.item = &item;
    unit_.head = seat.head = head;
    unit_.first = seat.first_row + first_row;
    unit_.count = count;
    asked_ = unit_.at(unit_.lane() % rows);  // about which this lane asks the variant, for all lanes
    const position_range seen = seen_by_rows(task_, item, head, unit_.first, count);
    int which = 0;
    bool begun = false;
    task_.view.each([&](const auto& seg) {
      const step_range run = run_of(task_, item, seat, which++, seen);
      if (run.first < run.last) attend_run(seg, run, begun, loader);
    });
    if (!begun) results_.clear();
  }

  template <class Segment>
  __device__ void attend_run(const Segment& seg, step_range run, bool& begun, key_loader<Task, DimStep>& loader) {
    using v = traits<typename Segment::v_format>;
    queries<Segment> q;
    static_scales fixed;
    // NOTE: a share's first steps only fill the ring: in the loop, so that there is one copy of the code that does.
    int step = run.first - (primed_ ? 0 : stages);
    primed_ = true;
#pragma unroll 1
    for (; step < run.last; ++step) {
      if (step == run.first) {
        end_early_reads(waited_);
        q.prepare(unit_, seg, queries_);
        // NOTE: not before the queries are there, so that they are made while the results' registers are free.
        if (!begun) results_.clear();
        begun = true;
        results_.template reorder<v::spread>(unit_);
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

  /// Scales that the caller gave.
  struct static_scales {
    float k = 1, v = 1;
  };
  template <class Segment>
  __device__ static_scales static_scales_of(const Segment& seg) const {
    static_scales s;
    if constexpr (traits<typename Segment::k_format>::params() == param_kind::scale32)
      s.k = read<float>(seg.planes.k_params.at({}, unit_.head, 0));
    if constexpr (traits<typename Segment::v_format>::params() == param_kind::scale32)
      s.v = read<float>(seg.planes.v_params.at({}, unit_.head, 0));
    return s;
  }

  /// Scores of tokens g and g + 8 with query rows 2t and 2t + 1 of each group.
  using scores = float[Groups][4];

  template <class Segment>
  __device__ void take(const Segment& seg, int step, const queries<Segment>& q, static_scales fixed) {
    using k = traits<typename Segment::k_format>;
    using v = traits<typename Segment::v_format>;
    using tile = device_tile<Segment>;
    u32 keys = slot_ + tile::notes, values = keys + (k::decoded ? 0 : tokens * k::pitch);
    u32 decoded = decoded_;
    if constexpr (k::decoded) keys = decoded, decoded += 2 * tokens * k::pitch;
    if constexpr (v::decoded) values = decoded;
    const u32 alive = ptx::load_shared_4(slot_ + slot_notes::alive);
    if constexpr (k::decoded || v::decoded) decode_step<k, v>(unit_, seg, step, alive, keys, values);
    scores c;
    multiply_keys<Segment>(keys, q, c);
    weigh(seg, q, fixed, alive, values, c);
  }

  /// Keys times queries.
  template <class Segment>
  __device__ void multiply_keys(u32 keys, const queries<Segment>& q, scores& c) const {
    using k = traits<typename Segment::k_format>;
    constexpr int chains = Groups == 1 ? 2 : 1;  // of sums that wait for each other
    float sums[chains][Groups][4];
#pragma unroll
    for (int i = 0; i < chains; ++i)
#pragma unroll
      for (int n = 0; n < Groups; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][n][j] = 0;
    const u32 first = chunk_at<k::pitch>(unit_.lane() % 16, unit_.lane() / 16);
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
            for (int term = 0; term < (plane == 0 ? q.terms : 1); ++term) {
              u32 pair[2];
              q.get(queries_, term, p, n, pair);
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
  template <class Segment>
  __device__ void weigh(const Segment& seg, const queries<Segment>& q, static_scales fixed, u32 alive, u32 values,
                        scores& c) {
    using k = traits<typename Segment::k_format>;
    using v = traits<typename Segment::v_format>;
    u32 upper = 0;
    if constexpr (k::params() == param_kind::scale16 || v::params() == param_kind::scale16)
      upper = ptx::load_shared_4(slot_ + slot_notes::upper);
    float v_log[2] = {0, 0}, v_inverse[2] = {1, 1}, v_zero[2] = {0, 0};  // of tokens g and g + 8
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      token_params key = params_of<k::params()>(unit_.g() + 8 * h, upper);
      token_params value = params_of<v::params()>(16 + unit_.g() + 8 * h, upper);
      if constexpr (k::params() == param_kind::scale32) key.scale = fixed.k;
      if constexpr (v::params() == param_kind::scale32) value.scale = fixed.v;
#pragma unroll
      for (int n = 0; n < Groups; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& s = c[n][2 * h + i];
          if constexpr (k::params() != param_kind::none) s *= key.scale;
          if constexpr (k::params() == param_kind::scale_zero) s += key.zero * q.sum_of[n][i];
          s *= q.unit_of[n][i];
        }
      if constexpr (v::params() != param_kind::none) {
        v_log[h] = ptx::log2(value.scale);
        v_inverse[h] = ptx::inverse(value.scale);
        v_zero[h] = value.zero * v_inverse[h];
      }
    }
    const bool masked = hide(seg, alive, values, c);
    change_scores(c);
    if constexpr (v::params() != param_kind::none) {
      if (masked)
        add_logs<true>(c, v_log);
      else
        add_logs<false>(c, v_log);
    }

    // Weights, relative to a maximum that is raised seldom: no more than 2^6, so that they fit 16 bits.
    float w[Groups][4], most = hidden;
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        w[n][j] = c[n][j] - results_.reference(n, j & 1);
        most = fmaxf(most, w[n][j]);
      }
    if (__any_sync(all, most > 6.0f)) {
      results_.raise(c);
#pragma unroll
      for (int n = 0; n < Groups; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) w[n][j] = c[n][j] - results_.reference(n, j & 1);
    }
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int j = 0; j < 4; ++j) w[n][j] = ptx::exp2(w[n][j]);
    // NOTE: a token that is hidden may have a scale that is NaN.
    if (v::params() != param_kind::none && masked)
      results_.template add_weights<true, v::params()>(w, v_inverse, v_zero);
    else
      results_.template add_weights<false, v::params()>(w, v_inverse, v_zero);
    results_.template multiply_values<Segment>(values, w);
  }

  __device__ void change_scores(scores& c) const {
    constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;
    constexpr bool changes = requires(where w) {
      task_.variant.score(w, 0.0f);
    };
    if constexpr (changes)
      for_each_pair([&](int n, int j, where w) {
        if (c[n][j] != hidden) c[n][j] = scored(task_.variant, w, c[n][j] * ln_2) * log2_e;
      });
  }

  /// `body(group, number, where)` for each of the lane's scores.
  template <class Body>
  __device__ void for_each_pair(Body&& body) const {
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = 8 * n + 2 * unit_.t() + i;
        where w = unit_.at(row);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          w.k_position = position(unit_.g() + 8 * h);
          body(n, 2 * h + i, w);
        }
      }
  }
  __device__ idx position(int token) const {
    return int(ptx::load_shared_4(slot_ + slot_notes::positions + 4u * u32(token)));
  }

  /// Hides what is not there, and what the variant or the retention hides. True where there is such.
  template <class Segment>
  __device__ bool hide(const Segment& seg, u32 alive, u32 values, scores& c) const {
    bool whole = Segment::retention_type::ordered && alive == 0xffffu;
    if (whole) {
      const position_range range{position(0), position(tokens - 1) + 1};
      whole = keeps_whole(task_.variant, asked_, range) && sees_whole(seg.retention, asked_.q_position, range);
    }
    if (__all_sync(all, whole)) return false;
    bool seen[2] = {false, false}, missed[2] = {false, false};  // tokens g and g + 8 by some of this lane's rows
    for_each_pair([&](int n, int j, const where& w) {
      const bool there = alive >> (unit_.g() + 8 * (j / 2)) & 1;
      const bool shown = there && seg.retention.sees(w.q_position, w.k_position) && keeps(task_.variant, w);
      if (!shown) c[n][j] = hidden;
      const bool counts = 8 * n + 2 * unit_.t() + j % 2 < unit_.count;
      seen[j / 2] |= shown && counts;
      missed[j / 2] |= !shown && counts;
    });
    drop_values<Segment>(alive & tokens_of(missed), tokens_of(seen), values, c);
    return true;
  }
  /// Of tokens that some row does not see, values that no row sees become zero: 0 x NaN is NaN. So do those that are not
  /// finite, and the scores of the rows that see them NaN, and with these their results.
  template <class Segment>
  __device__ void drop_values(u32 missed, u32 seen, u32 values, scores& c) const {
    using v = traits<typename Segment::v_format>;
    constexpr int chunks = v::pitch / 16;
#pragma unroll 1
    for (; missed; missed &= missed - 1) {
      const int token = __ffs(int(missed)) - 1;
      const bool some_see = seen >> token & 1;
      bool finite = true;
      for (int chunk = unit_.lane(); chunk < chunks; chunk += 32)
        finite = finite && is_finite<v::kind()>(ptx::load_shared_16(values + u32(token * v::pitch + chunk * 16)));
      if (some_see && __all_sync(all, finite)) continue;
      for (int chunk = unit_.lane(); chunk < (v::decoded ? 2 : 1) * chunks; chunk += 32)
        ptx::store_shared_16(values + u32((chunk / chunks * tokens + token) * v::pitch + chunk % chunks * 16), {});
      if (token % 8 == unit_.g())
#pragma unroll
        for (int n = 0; n < Groups; ++n)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            if (j / 2 == token / 8 && c[n][j] != hidden) c[n][j] = __int_as_float(0x7fc00000);
    }
    __syncwarp();
  }
  template <class Retention>
  __device__ static bool sees_whole(const Retention& retention, idx q_position, position_range range) {
    if constexpr (requires { retention.sees_from(q_position); })
      return range.first >= retention.sees_from(q_position);
    else
      return false;
  }

  /// The values' scales, which belong to the weights. NOTE: of a token that is hidden it may be NaN.
  template <bool Masked>
  __device__ static void add_logs(scores& c, const float (&v_log)[2]) {
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (!Masked || c[n][j] != hidden) c[n][j] += v_log[j / 2];
  }

  static constexpr float hidden = -__builtin_huge_valf();

  const Task& task_;
  loader_state& state_;
  warp_unit<Task> unit_;
  u32 queries_, decoded_, ring_, slot_;
  where asked_;
  results results_;
  bool primed_ = false;
  bool waited_;  // for the kernels before this one
};

}  // namespace kvilt::inline KVILT_ABI::detail
