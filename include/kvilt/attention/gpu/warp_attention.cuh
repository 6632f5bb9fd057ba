#pragma once

#include <kvilt/attention/gpu/partial_results.cuh>
#include <kvilt/attention/gpu/warp_scores.cuh>

namespace kvilt::inline KVILT_ABI::detail {

/// The attention of one warp: of a share of the line, one KV head, `8 x Groups` query rows at a time.
///
/// Results are V^T P^T, by tensor cores as the scores are: tokens, which were rows of that product, are columns of this
/// one. V's scales multiply the weights, in whose maximum they have a part, so that weights fit 16 bits.
template <class Task, int DimStep, int Groups>
class warp_attention : public warp_scores<Task, DimStep, Groups, partial_results<Task, DimStep, Groups>::registers> {
  using results = partial_results<Task, DimStep, Groups>;
  using base = warp_scores<Task, DimStep, Groups, results::registers>;
  using u32 = ptx::u32;
  using base::step, base::all, base::hidden;
  using base::unit_, base::slot_, base::q_;
  template <class Format>
  using traits = code_traits<Format, DimStep>;
  template <class Segment>
  using queries = typename base::template queries<Segment>;
  template <int Steps>
  using scores = float[Steps][Groups][4];

 public:
  /// `memory`: [memory_bytes()] of this warp's own, on a line of `warp_bytes::line`.
  __device__ warp_attention(const Task& task, unsigned char* memory) : base(task, memory) {}

  /// Rows [first_row, first_row + rows) of every unit of team `team`'s share.
  __device__ void run(const team_share& share, int team, int head_of_team, int first_row) {
    this->walk(
        share, head_of_team, first_row, [&](const auto& seg, const tile_label& label) { begin_run(seg, label); },
        [&](const auto& seg, const tile_label& label) { take(seg, label); },
        [&] { results_.leave(unit_, team, head_of_team, first_row); });
  }

 private:
  template <class Segment>
  __device__ void begin_run(const Segment& seg, const tile_label& label) {
    this->ask(seg, label);
    // NOTE: not before the queries are there, so that they are made while the results' registers are free.
    if (label.says(tile_label::begins_unit)) results_.clear();
    results_.template reorder<traits<typename Segment::v_format>::spread>(unit_);
    fixed_v_ = 1;
    if constexpr (traits<typename Segment::v_format>::params() == param_kind::scale32)
      fixed_v_ = read<float>(seg.planes.v_params.at({}, unit_.head, 0));
  }

  template <class Segment>
  __device__ void take(const Segment& seg, const tile_label& label) {
    using k = traits<typename Segment::k_format>;
    using v = traits<typename Segment::v_format>;
    constexpr int count = base::template steps<Segment>(), tokens = count * step;
    u32 keys = slot_.codes, values = keys + (k::decoded ? 0 : tokens * k::pitch);
    u32 decoded = this->memory(base::decoded_at);
    if constexpr (k::decoded) keys = decoded, decoded += 2 * tokens * k::pitch;
    if constexpr (v::decoded) values = decoded;
    if constexpr (k::decoded || v::decoded)
      decode_step<k, v>(unit_, seg, int(ptx::load_shared_4(slot_.notes + tile_label::row_at)), label.alive, keys,
                        values);
    scores<count> c;
    queries<Segment>::template multiply_keys<count>(keys, q_, this->memory(base::factors_at), c);
    weigh<Segment, count>(seg, label, values, c);
  }

  /// From products to weights, and their part in the results.
  template <class Segment, int Steps>
  __device__ void weigh(const Segment& seg, const tile_label& label, u32 values, scores<Steps>& c) {
    using v = traits<typename Segment::v_format>;
    const u32 k_params = slot_.notes + tile_label::positions_at + 4 * step * Steps,
              v_params = k_params + 4 * step * Steps;
    float v_log[Steps][2], v_inverse[Steps][2], v_zero[Steps][2];  // of tokens g and g + 8
#pragma unroll
    for (int s = 0; s < Steps; ++s)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int token = step * s + 8 * h + unit_.g();
        this->template scale_products<Segment>(k_params, label.k_upper, token, h, c[s]);
        auto value = base::template params_of<v::params()>(v_params, token, label.v_upper);
        if constexpr (v::params() == param_kind::scale32) value.scale = fixed_v_;
        v_log[s][h] = 0, v_inverse[s][h] = 1, v_zero[s][h] = 0;
        if constexpr (v::params() != param_kind::none) {
          v_log[s][h] = ptx::log2(value.scale);
          v_inverse[s][h] = ptx::inverse(value.scale);
          v_zero[s][h] = value.zero * v_inverse[s][h];
        }
      }
    this->template change_scores<Steps>(label.alive, c);
    if (this->template all_see<Segment, Steps>(seg, label.alive)) {
      if constexpr (v::params() != param_kind::none) add_logs<Steps>(c, v_log);
    } else {
      bool seen[Steps][2] = {}, missed[Steps][2] = {};
      this->template hide<Segment, Steps>(seg, label.alive, c, seen, missed);
      drop_values<Segment, Steps>(label.alive & tokens_of(missed), tokens_of(seen), values, c);
      if constexpr (v::params() != param_kind::none) add_logs_of_seen<Steps>(c, v_log, v_inverse, v_zero);
    }

    // Weights, relative to a maximum that is raised seldom, so that they fit 16 bits.
    scores<Steps> w;
    float most = hidden;
#pragma unroll
    for (int s = 0; s < Steps; ++s)
#pragma unroll
      for (int n = 0; n < Groups; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          w[s][n][j] = c[s][n][j] - results_.reference(n, j & 1);
          most = fmaxf(most, w[s][n][j]);
        }
    if (__any_sync(all, most > results::weights::most)) {
      results_.template raise<Steps>(c);
#pragma unroll
      for (int s = 0; s < Steps; ++s)
#pragma unroll
        for (int n = 0; n < Groups; ++n)
#pragma unroll
          for (int j = 0; j < 4; ++j) w[s][n][j] = c[s][n][j] - results_.reference(n, j & 1);
    }
#pragma unroll
    for (int s = 0; s < Steps; ++s)
#pragma unroll
      for (int n = 0; n < Groups; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) w[s][n][j] = ptx::exp2(w[s][n][j]);
#pragma unroll
    for (int s = 0; s < Steps; ++s) results_.template add_weights<v::params()>(w[s], v_inverse[s], v_zero[s]);
    results_.template multiply_values<Segment, Steps>(values, w);
  }

  /// Of tokens that some row does not see, values that no row sees become zero: 0 x NaN is NaN. So do those that are not
  /// finite, and the scores of the rows that see them NaN, and with these their results.
  template <class Segment, int Steps>
  __device__ void drop_values(u32 missed, u32 seen, u32 values, scores<Steps>& c) const {
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
        ptx::store_shared_16(values + u32((chunk / chunks * step + token) * v::pitch + chunk % chunks * 16), {});
      if (token % 8 == unit_.g())
#pragma unroll
        for (int s = 0; s < Steps; ++s)
#pragma unroll
          for (int n = 0; n < Groups; ++n)
#pragma unroll
            for (int j = 0; j < 4; ++j)
              if (2 * s + j / 2 == token / 8 && c[s][n][j] != hidden) c[s][n][j] = __int_as_float(0x7fc00000);
    }
    __syncwarp();
  }

  /// The values' scales, which belong to the weights.
  template <int Steps>
  __device__ static void add_logs(scores<Steps>& c, const float (&v_log)[Steps][2]) {
#pragma unroll
    for (int s = 0; s < Steps; ++s)
#pragma unroll
      for (int n = 0; n < Groups; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) c[s][n][j] += v_log[s][j / 2];
  }
  /// The same where some are hidden, whose params may be NaN, or 0 where there is no token. Rows that do see a NaN have it
  /// in the score.
  template <int Steps>
  __device__ static void add_logs_of_seen(scores<Steps>& c, const float (&v_log)[Steps][2],
                                          float (&v_inverse)[Steps][2], float (&v_zero)[Steps][2]) {
    const auto finite = [](float x) { return fabsf(x) < __builtin_huge_valf(); };
#pragma unroll
    for (int s = 0; s < Steps; ++s)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float log = v_log[s][h];
        if (!finite(v_inverse[s][h]))
          v_inverse[s][h] = v_zero[s][h] = 0;
        else if (!finite(v_zero[s][h]))
          log = __int_as_float(0x7fc00000), v_zero[s][h] = 0;
#pragma unroll
        for (int n = 0; n < Groups; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& x = c[s][n][2 * h + i];
            if (x != hidden) x += log;
          }
      }
  }

  results results_;
  float fixed_v_;  // V's scale that the caller gave
};

}  // namespace kvilt::inline KVILT_ABI::detail
