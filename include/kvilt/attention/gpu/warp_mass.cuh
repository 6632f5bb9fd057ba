#pragma once

#include <kvilt/attention/gpu/warp_scores.cuh>
#include <kvilt/cache/keys_view.hpp>

namespace kvilt::inline KVILT_ABI::detail {

/// One call for column sums, as its kernel gets it. A unit of its line is all rows of a sequence that count.
template <class View, class Variant, class Positions, class Q>
struct device_mass {
  using view_type = keys_view<View>;
  using variant_type = Variant;
  using positions_type = Positions;
  using query_type = Q;

  view_type view;
  Variant variant;
  Positions positions;
  float scale = 0;
  rows<const Q> q;
  natural_lse lse;
  kvilt::rows<float> mass;
  const step_item* items = nullptr;
  int size = 0;
  work_plan work;
  int last = 0;       // queries of a sequence that count
  int most_rows = 0;  // of these, at most
  bool early = false;

  /// The first row that counts, of a sequence's.
  __device__ int first_row(const step_item& item) const {
    return (item.queries - min(item.queries, last)) * work.shape.group.value();
  }
};

/// The column sums of one warp: of a share of the line, one KV head, `8 x Groups` query rows at a time.
///
/// It has all rows of the keys of its share, and no other warp has any: a number is added to once for each pass over
/// the share, in their order. So bits are the same however warps run, and nobody waits for what was there before.
template <class Task, int DimStep, int Groups>
class warp_mass : public warp_scores<Task, DimStep, Groups, 0> {
  using base = warp_scores<Task, DimStep, Groups, 0>;
  using u32 = ptx::u32;
  using base::step, base::all, base::task_, base::unit_, base::slot_, base::q_;
  template <int Steps>
  using scores = float[Steps][Groups][4];

 public:
  /// `memory`: [memory_bytes()] of this warp's own, on a line of `warp_bytes::line`.
  __device__ warp_mass(const Task& task, unsigned char* memory) : base(task, memory) {}

  /// Rows [first_row, first_row + rows) of every unit of the share.
  __device__ void run(const team_share& share, int head_of_team, int first_row) {
    this->walk(
        share, head_of_team, first_row, [&](const auto& seg, const tile_label& label) { begin_run(seg, label); },
        [&](const auto& seg, const tile_label& label) { take(seg, label); }, [] {});
  }

 private:
  static constexpr float nothing = __builtin_huge_valf();

  template <class Segment>
  __device__ void begin_run(const Segment& seg, const tile_label& label) {
    this->ask(seg, label);
    if (label.says(tile_label::begins_unit)) read_sums();
    rows_before_ = 0;
    if constexpr (Task::view_type::segments > 1) {
      const lengths n = task_.items[unit_.number_of_item].n;
      int i = 0;
      task_.view.each([&](const auto& other) {
        if (i++ < label.segment()) rows_before_ += int(other.retention.count(n, unit_.item.sequence, unit_.head));
      });
    }
  }
  /// Log-sum-exps of the unit's rows, in log2 units.
  __device__ void read_sums() {
    constexpr float log2_e = 1.4426950408889634f;
#pragma unroll
    for (int n = 0; n < Groups; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = 8 * n + 2 * unit_.t() + i;
        const where w = unit_.at(row);
        const float lse = task_.lse.at(unit_.item.q_row + w.q_index, w.q_head);
        lse_[n][i] = row < unit_.count && lse != -__builtin_huge_valf() ? lse * log2_e : nothing;
      }
  }

  template <class Segment>
  __device__ void take(const Segment& seg, const tile_label& label) {
    using k = code_traits<typename Segment::k_format, DimStep>;
    constexpr int count = base::template steps<Segment>();
    const int first = int(ptx::load_shared_4(slot_.notes + tile_label::row_at));

    // Products of keys and queries.
    u32 keys = slot_.codes;
    if constexpr (k::decoded) {
      keys = this->memory(base::decoded_at);
      decode_step<k, no_values>(unit_, seg, first, label.alive, keys, 0);
    }
    scores<count> c;
    base::template queries<Segment>::template multiply_keys<count>(keys, q_, this->memory(base::factors_at), c);

    // From products to scores.
    const u32 k_params = slot_.notes + tile_label::positions_at + 4 * step * count;
#pragma unroll
    for (int s = 0; s < count; ++s)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        this->template scale_products<Segment>(k_params, label.k_upper, step * s + 8 * h + unit_.g(), h, c[s]);
    this->template change_scores<count>(label.alive, c);
    if (!this->template all_see<Segment, count>(seg, label.alive)) {
      bool seen[count][2] = {}, missed[count][2] = {};
      this->template hide<Segment, count>(seg, label.alive, c, seen, missed);
    }

    // Each token's weights, added up over this lane's rows.
    float sums[2 * count];
#pragma unroll
    for (int i = 0; i < 2 * count; ++i) {
      sums[i] = 0;
#pragma unroll
      for (int n = 0; n < Groups; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float weight = ptx::exp2(c[i / 2][n][2 * (i % 2) + j] - lse_[n][j]);
          // NOTE: rows that do not count are 0 also where keys are NaN.
          sums[i] += lse_[n][j] == nothing ? 0.0f : weight;
        }
    }

    // Added up over the lanes that have the other rows, and to what is there.
    const float sum = add_rows(sums);
    const int token = unit_.g() + 8 * unit_.t(), place = rows_before_ + first + token;
    if ((label.alive >> token & 1) && place < task_.mass.dim)
      ptx::add_to_global(task_.mass.at(unit_.item.sequence, unit_.head) + place, sum);
  }

  /// Formats that `decode_step` leaves alone.
  struct no_values {
    static constexpr bool decoded = false;
  };

  /// Sums over lanes 4g to 4g + 3: lane t of them is given that of token g + 8t, if there is one. Lanes change halves
  /// of what they have.
  __device__ static float add_rows(const float (&sums)[4]) {
    const bool upper = unit_type::t() & 2, odd = unit_type::t() & 1;
    float even_token = upper ? sums[2] : sums[0], odd_token = upper ? sums[3] : sums[1];
    even_token += __shfl_xor_sync(all, upper ? sums[0] : sums[2], 2);
    odd_token += __shfl_xor_sync(all, upper ? sums[1] : sums[3], 2);
    return (odd ? odd_token : even_token) + __shfl_xor_sync(all, odd ? even_token : odd_token, 1);
  }
  __device__ static float add_rows(const float (&sums)[2]) {
    const bool odd = unit_type::t() & 1;
    const float sum = (odd ? sums[1] : sums[0]) + __shfl_xor_sync(all, odd ? sums[0] : sums[1], 1);
    return sum + __shfl_xor_sync(all, sum, 2);
  }
  using unit_type = warp_unit<Task>;

  float lse_[Groups][2];  // of query rows 2t and 2t + 1
  int rows_before_ = 0;   // the segment's
};

/// Column sums of a block's teams.
template <class Task, int DimStep, int Groups>
__global__ void __launch_bounds__(32 * warp_bytes::of<typename Task::view_type>(DimStep, 8 * Groups).warps, 1)
    mass_kernel(const __grid_constant__ Task task) {
  extern __shared__ __align__(128) unsigned char memory[];
  if (!task.early) wait_for_earlier_kernels(), let_next_kernel_start();
  const work_shape& shape = task.work.shape;
  const int warp = int(threadIdx.x) / 32, teams_here = shape.warps / shape.heads;
  const team_share& share = task.work.teams[int(blockIdx.x) * teams_here + warp / shape.heads];
  if (share.steps == 0) {
    bool waited = !task.early;
    return end_early_reads(waited);  // so that this kernel does not end before those before it
  }
  using mass = warp_mass<Task, DimStep, Groups>;
  mass sums(task, memory + warp * mass::memory_bytes());
  for (int row = 0; row < task.most_rows; row += 8 * Groups) sums.run(share, warp % shape.heads, row);
}

}  // namespace kvilt::inline KVILT_ABI::detail
