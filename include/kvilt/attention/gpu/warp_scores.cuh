#pragma once

#include <kvilt/attention/gpu/code_traits.cuh>
#include <kvilt/attention/gpu/decoded_rows.cuh>
#include <kvilt/attention/gpu/key_loader.cuh>
#include <kvilt/attention/gpu/query_factors.cuh>
#include <kvilt/gpu/gpu.cuh>

namespace kvilt::inline KVILT_ABI::detail {

/// A warp's way along its share of the line for one KV head, tile by tile, and the scores of each tile's keys with
/// `8 x Groups` query rows: for attention, and for all else that becomes of scores. `Taken`: registers that this needs.
///
/// Scores are K Q^T, by tensor cores, 16 tokens at a time: tokens are rows of the product, so that a group of query
/// heads wastes nothing. Scales of a token never touch its numbers: they multiply the scores.
template <class Task, int DimStep, int Groups, int Taken>
class warp_scores {
 protected:
  using view_type = typename Task::view_type;
  using u32 = ptx::u32;
  static constexpr int rows = 8 * Groups, step = work_shape::tokens;
  static constexpr u32 all = 0xffffffffu;
  static constexpr float hidden = -__builtin_huge_valf();

  /// `memory`: [memory_bytes()] of this warp's own, on a line of `warp_bytes::line`.
  __device__ warp_scores(const Task& task, unsigned char* memory)
      : task_(task), unit_{task, rows_in(memory)}, memory_(memory), waited_(!task.early) {}

 public:
  KVILT_HD static constexpr int memory_bytes() { return bytes.total(factor_bytes); }
  /// The rows in a warp's memory, where results stay if the task writes none.
  __device__ static warp_rows rows_in(unsigned char* memory) { return warp_rows::in(memory + rows_at, row_stride); }

 protected:
  /// Rows [first_row, first_row + rows) of every unit of the share: `begin(segment, label)` where a run of tiles
  /// begins, `take(segment, label)` for each tile that has tokens, and `leave()` after a unit's last.
  template <class Begin, class Take, class Leave>
  __device__ void walk(const team_share& share, int head_of_team, int first_row, Begin begin, Take take, Leave leave) {
    key_loader<Task, DimStep, rows, stages> loader(task_, share, memory_ + state_at, head_of_team, first_row);
    slot_ = slot(0);
    // NOTE: the first turns only fill the ring: in the loop, so that there is one copy of the code that does.
    int filling = stages + 1;
    bool last = false;  // tile of its unit
#pragma unroll 1
    while (true) {
      if (filling == 0) {
        ptx::wait_copies<stages - 1>();
        __syncwarp();
        const tile_label label = tile_label::of(slot_);
        if (!label.says(tile_label::there)) break;
        end_early_reads(waited_);  // for units without keys too: others may still read what results overwrite
        visit_segment(task_.view, label.segment(), [&](const auto& seg) {
          if (label.says(tile_label::begins_run)) begin(seg, label);
          if (label.alive != 0) take(seg, label);
        });
        const tile_label next = tile_label::of(after(slot_));
        last = !next.says(tile_label::there) || next.says(tile_label::begins_unit);
        __syncwarp();
      }
      loader.issue(slot_, waited_);
      // NOTE: not before the next copies are on their way.
      if (last) leave();
      last = false;
      if (filling <= stages) slot_ = after(slot_);
      if (filling > 0) --filling;
    }
    ptx::wait_all_copies();
  }

  template <class Format>
  using traits = code_traits<Format, DimStep>;
  template <class Segment>
  static consteval int steps() {
    return device_tile<Segment>::tokens(DimStep, rows) / step;
  }

  static constexpr warp_bytes bytes = warp_bytes::of<view_type>(DimStep, rows);
  static constexpr int stages = bytes.stages();
  static constexpr int row_stride = bytes.rows / (8 * int(sizeof(float))) - device_row_notes;

  /// Registers of queries, and whether these are kept in shared memory instead.
  static constexpr int factors = factor_registers<Task, DimStep, Groups>(static_cast<const view_type*>(nullptr));
  static constexpr bool factors_in_memory = factors + Taken > 100;
  static constexpr int factor_bytes = factors_in_memory ? 128 * factors : 0;
  // Codes first, on lines; notes last.
  static constexpr int decoded_at = stages * bytes.codes, factors_at = decoded_at + bytes.decoded,
                       rows_at = factors_at + factor_bytes, notes_at = rows_at + bytes.rows,
                       state_at = notes_at + stages * (bytes.notes + bytes.queries);
  template <class Segment>
  using queries = query_factors<Task, DimStep, Groups, Segment, factors_in_memory>;

  __device__ u32 memory(int at) const {
    return ptx::shared_address(memory_) + u32(at);
  }
  __device__ ring_slot slot(int i) const {
    return {memory(i * bytes.codes), memory(notes_at + i * (bytes.notes + bytes.queries))};
  }
  __device__ ring_slot after(const ring_slot& s) const {
    const ring_slot last = slot(stages - 1);
    return s.notes == last.notes ? slot(0) : ring_slot{s.codes + bytes.codes, s.notes + bytes.notes + bytes.queries};
  }

  __device__ void sit(const unit_label& label) {
    unit_.number_of_item = int(label.item);
    unit_.item = label.rows;
    unit_.head = label.head();
    unit_.first = label.first;
    unit_.count = label.count();
    unit_.opens = label.says(unit_label::opens);
    unit_.closes = label.says(unit_label::closes);
    unit_.queries = nullptr;
    if (label.says(unit_label::has_queries)) {
      const u32 from = slot_.notes + bytes.notes - memory(0);
      unit_.queries = reinterpret_cast<const typename Task::query_type*>(memory_ + from);
      unit_.query_pitch = bytes.queries / 8 / int(sizeof(typename Task::query_type));
    }
    asked_ = unit_.at(unit_.lane() % rows);
  }
  /// Seats the warp where a unit begins, and makes the run's keys ready to be multiplied with its queries.
  template <class Segment>
  __device__ void ask(const Segment& seg, const tile_label& label) {
    if (label.says(tile_label::begins_unit)) sit(unit_label::of(slot_));
    queries<Segment>::prepare(unit_, seg, memory(factors_at), q_);
    // NOTE: of a later run these are read where they were given.
    unit_.queries = nullptr;
    fixed_k_ = 1;
    if constexpr (traits<typename Segment::k_format>::params() == param_kind::scale32)
      fixed_k_ = read<float>(seg.planes.k_params.at({}, unit_.head, 0));
  }

  /// Scores of tokens g and g + 8 of every sixteen with query rows 2t and 2t + 1 of each group.
  template <int Steps>
  using scores = float[Steps][Groups][4];

  /// A token's params as floats.
  struct token_params {
    float scale = 1, zero = 0;
  };
  /// Of token `token`; `from`: of the tile's first.
  template <param_kind Kind>
  __device__ static token_params params_of(u32 from, int token, u32 upper) {
    token_params p;
    if constexpr (Kind == param_kind::scale16 || Kind == param_kind::scale_zero) {
      const u32 word = ptx::load_shared_4(from + 4u * u32(token));
      const u32 shift = Kind == param_kind::scale16 ? (upper >> token & 1) * 16 : 0;
      p.scale = ptx::from_half(word >> shift);
      if constexpr (Kind == param_kind::scale_zero) p.zero = ptx::from_half(word >> 16);
    }
    return p;
  }

  /// From products with token `token`, which is g or g + 8 of a step's as `half` says, to scores in log2 units.
  template <class Segment>
  __device__ void scale_products(u32 k_params, u32 k_upper, int token, int half, float (&c)[Groups][4]) const {
    using k = traits<typename Segment::k_format>;
    token_params key = params_of<k::params()>(k_params, token, k_upper);
    if constexpr (k::params() == param_kind::scale32) key.scale = fixed_k_;
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = c[n][2 * half + i];
        if constexpr (k::params() != param_kind::none) x *= key.scale;
        if constexpr (k::params() == param_kind::scale_zero) x += key.zero * q_.sum_of[n][i];
        x *= queries<Segment>::unit(q_, task_, n, i);
      }
  }

  template <int Steps>
  __device__ void change_scores(u32 alive, scores<Steps>& c) const {
    constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;
    constexpr bool changes = requires(where w) {
      task_.variant.score(w, 0.0f);
    };
    if constexpr (changes)
      for_each_pair<Steps>([&](int s, int n, int j, where w) {
        float& x = c[s][n][j];
        if (alive >> (step * s + unit_.g() + 8 * (j / 2)) & 1) x = scored(task_.variant, w, x * ln_2) * log2_e;
      });
  }

  /// `body(step, group, number, where)` for each of the lane's scores.
  template <int Steps, class Body>
  __device__ void for_each_pair(Body&& body) const {
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = 8 * n + 2 * unit_.t() + i;
        where w = unit_.at(row);
#pragma unroll
        for (int h = 0; h < 2 * Steps; ++h) {
          w.k_position = position(unit_.g() + 8 * h);
          body(h / 2, n, 2 * (h % 2) + i, w);
        }
      }
  }
  __device__ idx position(int token) const {
    return int(ptx::load_shared_4(slot_.notes + tile_label::positions_at + 4u * u32(token)));
  }

  /// Are all tokens there, and seen by all rows?
  template <class Segment, int Steps>
  __device__ bool all_see(const Segment& seg, u32 alive) const {
    constexpr int tokens = step * Steps;
    bool whole = Segment::retention_type::ordered && alive == (2u << (tokens - 1)) - 1;
    if (whole) {
      const position_range range{position(0), position(tokens - 1) + 1};
      whole = keeps_whole(task_.variant, asked_, range) && sees_whole(seg.retention, asked_.q_position, range);
    }
    return __all_sync(all, whole);
  }
  /// Hides what is not there, and what the variant or the retention hides: tokens g and g + 8 of every sixteen that are
  /// `seen` by some of this lane's rows, and that are `missed` by some.
  template <class Segment, int Steps>
  __device__ void hide(const Segment& seg, u32 alive, scores<Steps>& c, bool (&seen)[Steps][2],
                       bool (&missed)[Steps][2]) const {
    for_each_pair<Steps>([&](int s, int n, int j, const where& w) {
      const bool there = alive >> (step * s + unit_.g() + 8 * (j / 2)) & 1;
      const bool shown = there && seg.retention.sees(w.q_position, w.k_position) && keeps(task_.variant, w);
      if (!shown) c[s][n][j] = hidden;
      const bool counts = 8 * n + 2 * unit_.t() + j % 2 < unit_.count;
      seen[s][j / 2] |= shown && counts;
      missed[s][j / 2] |= !shown && counts;
    });
  }
  template <class Retention>
  __device__ static bool sees_whole(const Retention& retention, idx q_position, position_range range) {
    if constexpr (requires { retention.sees_from(q_position); })
      return range.first >= retention.sees_from(q_position);
    else
      return false;
  }

  const Task& task_;
  warp_unit<Task> unit_;
  unsigned char* memory_;
  ring_slot slot_;  // of the tile that is taken next
  where asked_;     // about which this lane asks the variant, for all lanes
  query_registers<factors_in_memory ? 1 : factors, Groups> q_;
  float fixed_k_;  // K's scale that the caller gave
  bool waited_;    // for the kernels before this one
};

}  // namespace kvilt::inline KVILT_ABI::detail
