#pragma once

#include <kvilt/attention/gpu/group_loader.cuh>

namespace kvilt::inline KVILT_ABI::detail {

/// The attention of one warpgroup of a block's: 64 query rows of one item and KV head, 16 to a warp, as `block_of_rows` has
/// them, by products of warpgroups. Products of the next tile's keys run while this tile's values are multiplied and while
/// weights are made; and of two groups one makes weights while the other multiplies: they take turns.
template <class Task, int DimStep>
class group_of_rows : score_rows<Task, DimStep, 1, group_bytes::of<typename Task::view_type>(DimStep).tokens,
                                 loaded_tiles<Task, DimStep>> {
  static constexpr group_bytes bytes = group_bytes::of<typename Task::view_type>(DimStep);
  using tiles_type = loaded_tiles<Task, DimStep>;
  using base = score_rows<Task, DimStep, 1, bytes.tokens, tiles_type>;
  using u32 = ptx::u32;
  using base::task_, base::tiles_, base::reference_, base::warp, base::lane, base::g, base::t, base::share, base::unit,
      base::tokens, base::columns;
  static constexpr int multipliers = group_bytes::groups * group_bytes::group_threads;
  static constexpr int out_numbers = bytes.v_dim / 2;

 public:
  __device__ group_of_rows(const Task& task, unsigned char* memory) : base(task, memory), group_(warp() / 4) {
    if (group_ == 1) end_turn();
  }

  /// All rows that loaders give.
  __device__ void run() {
    while (tiles_.take(warp() * base::warp_rows_, base::warp_rows_)) {
      this->clear_sums();
#pragma unroll
      for (int i = 0; i < out_numbers; ++i) out_[i] = 0;
      task_.view.each([&](const auto& seg) { take_segment(seg); });
      leave();
      tiles_.done_with_rows();
    }
  }

 private:
  __device__ void begin_turn() const {
    ptx::sync(tiles_type::turns + group_, multipliers);
  }
  __device__ void end_turn() const {
    ptx::pass(tiles_type::turns + 1 - group_, multipliers);
  }

  template <class Segment>
  __device__ void take_segment(const Segment& seg) {
    using tile = prefill_tile<Segment, DimStep>;
    if (!tiles_.begin(seg)) return;
    bring_queries(seg);
    float c[1][columns][4], factors[1][2];
    u32 weights[tokens / 16][4];
    bool raised = false;
    const auto raise = [&](const float(&f)[1][2]) { raised = true, factors[0][0] = f[0][0], factors[0][1] = f[0][1]; };
    // The first scores.
    u32 keys = tiles_.wait_for_keys();
    begin_turn();
    ptx::begin_products();
    multiply_keys<tile>(c, keys);
    end_turn();
    ptx::wait_products<0>();
    settle(c);
    tiles_.done_with_keys();
    this->template finish<tile>(seg, c, tiles_.next_notes(), raise);
    if (raised) scale_results(factors);
    pack<tile>(c, weights);
    for (int i = 1; i < tiles_.tiles(); ++i) {
      // The next scores, and beside them the weighted values of those before.
      keys = tiles_.wait_for_keys();
      begin_turn();
      ptx::begin_products();
      multiply_keys<tile>(c, keys);
      const u32 values = tiles_.wait_for_values();
      ptx::begin_products();
      multiply_values<tile>(weights, values);
      end_turn();
      ptx::wait_products<1>();
      settle(c);
      tiles_.done_with_keys();
      // Their weights.
      raised = false;
      this->template finish<tile>(seg, c, tiles_.next_notes(), raise);
      ptx::wait_products<0>();
      ptx::settle(out_);
      tiles_.done_with_values();
      if (raised) scale_results(factors);
      pack<tile>(c, weights);
    }
    // The last values.
    const u32 values = tiles_.wait_for_values();
    ptx::begin_products();
    multiply_values<tile>(weights, values);
    ptx::wait_products<0>();
    ptx::settle(out_);
    tiles_.done_with_values();
  }

  /// The rows' queries as numbers of the segment's keys.
  template <class Segment>
  __device__ void bring_queries(const Segment& seg) {
    if constexpr (tiles_type::turns_queries) {
      ptx::sync(tiles_type::multipliers, multipliers);  // no tile is in use
      this->prepare_queries(seg);
    } else {
      sync_group();  // no query is in use, nor a result
      this->prepare_given_queries(seg);
    }
    ptx::show_to_products();
    if constexpr (tiles_type::turns_queries) tiles_.let_come();
    sync_group();
  }
  __device__ void sync_group() const {
    ptx::sync(tiles_type::of_group + group_, group_bytes::group_threads);
  }

  __device__ static void settle(float (&c)[1][columns][4]) {
#pragma unroll
    for (int n = 0; n < columns; ++n) ptx::settle(c[0][n]);
  }
  template <class Tile>
  __device__ void multiply_keys(float (&c)[1][columns][4], u32 keys) const {
    const u32 queries = tiles_.queries(group_);
#pragma unroll
    for (int p = 0; p < Tile::k_steps; ++p) {
      const u32 panel = p / 4, inside = p % 4 * 32;
      ptx::multiply_shared<Tile::k::numbers, tokens>(
          c[0][0], ptx::factor(queries + panel * (group_bytes::group_rows * group_bytes::panel_row) + inside),
          ptx::factor(keys + panel * (tokens * group_bytes::panel_row) + inside), p > 0);
    }
    ptx::commit_products();
  }
  template <class Tile>
  __device__ void multiply_values(const u32 (&weights)[tokens / 16][4], u32 values) {
#pragma unroll
    for (int k = 0; k < tokens / 16; ++k)
      multiply_values_from<Tile, 0>(weights[k], values + u32(k * 16 * group_bytes::panel_row));
    ptx::commit_products();
  }
  /// Numbers [First, v_dim) of results, as many at once as a product may have of a power of two.
  template <class Tile, int First>
  __device__ void multiply_values_from(const u32 (&weights)[4], u32 values) {
    constexpr int panel = tokens * group_bytes::panel_row, left = 16 * Tile::v_steps - First;
    if constexpr (left > 0) {
      constexpr int width = left >= 128 ? 128 : left >= 64 ? 64 : left >= 32 ? 32 : 16;
      const u32 at = values + u32(First / 64 * panel + First % 64 * 2);
      ptx::multiply_registers<Tile::v::numbers, width>(out_ + First / 2, weights, ptx::factor(at, panel));
      multiply_values_from<Tile, First + width>(weights, values);
    }
  }

  template <class Tile>
  __device__ void pack(const float (&c)[1][columns][4], u32 (&weights)[tokens / 16][4]) {
#pragma unroll
    for (int k = 0; k < tokens / 16; ++k) this->template pack_weights<Tile>(c, 0, k, weights[k]);
  }
  __device__ void scale_results(const float (&factors)[1][2]) {
#pragma unroll
    for (int i = 0; i < out_numbers; ++i) out_[i] *= factors[0][i / 2 % 2];
  }

  /// Writes the rows' results: straight from registers, or, where they are to be turned back, eight rows of a warp at a time.
  __device__ void leave() {
    constexpr bool turned = !std::is_same_v<typename Task::view_type::v_rotation, no_rotation>;
    const warp_share& s = share();
    if constexpr (turned) sync_group();  // no query is in use
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum, zero;
      this->row_sums(0, h, sum, zero);
      if constexpr (turned) {
        const warp_rows x = tiles_.results(warp());
#pragma unroll
        for (int n = 0; n < out_numbers / 4; ++n)
          *reinterpret_cast<float2*>(x.row(g()) + 8 * n + 2 * t()) = {out_[4 * n + 2 * h] + zero,
                                                                      out_[4 * n + 2 * h + 1] + zero};
        if (t() == 0) x.maximum(g()) = reference_[0][h], x.sum(g()) = sum;
        __syncwarp();
        if (s.count > 8 * h) write_results(task_, s.item, s.head, s.first + 8 * h, min(s.count - 8 * h, 8), x);
      } else if (8 * h + g() < s.count) {
        write_row(where_of(task_, s.item, s.head, s.first + 8 * h + g()), s.item.q_row, h, sum, zero);
      }
    }
  }
  /// A row's, of which four lanes have two numbers of every eight.
  __device__ void write_row(const where& w, idx q_row, int h, float sum, float zero) const {
    using number = typename Task::out_type;
    float maximum = reference_[0][h];
    const float factor = end_row(task_, w.q_head, maximum, sum);
    const idx row = q_row + w.q_index;
    if (task_.lse && t() == 0) task_.lse.at(row, w.q_head) = natural_log_sum(maximum, sum);
    number* const to = task_.out.at(row, w.q_head) + 2 * t();
    const bool in_pairs = in_eights(task_.out);
    const int dim = task_.view.v_dim();
#pragma unroll
    for (int n = 0; n < out_numbers / 4; ++n)
      if (8 * n < dim)
        store_pair(to + 8 * n, in_pairs, (out_[4 * n + 2 * h] + zero) * factor,
                   (out_[4 * n + 2 * h + 1] + zero) * factor);
  }

  int group_;
  float out_[out_numbers];  // of rows 8 x half + g: numbers 8 n + 2 t + i are 4 n + 2 x half + i
};

/// What blocks of warpgroups take one after the other, of a step's items that are left to blocks: stretches of rows, the last
/// of an item first, since in causal attention they see most; and of all heads, so that blocks at work are at much the same
/// keys: those that want the same bytes at a time get them at once. A counter in the plan tells how far they are.
template <class Task, int DimStep>
class stretches_of_rows {
  using u64 = unsigned long long;  // what can be counted with atomically

 public:
  __device__ explicit stretches_of_rows(const Task& task) : task_(task) {
    const idx rows = idx(task.most_queries) * task.work.shape.group.value();
    stretches_ = int(ceil_div(rows, group_bytes::rows));
  }
  /// How many rows there are in the next stretch: none where there is none.
  __device__ int next(lengths& n, item_rows& rows, int& head, int& first) const {
    const int heads = task_.work.shape.kv_heads;
    const u64 of_item = u64(heads) * u64(stretches_), end = u64(task_.size) * of_item;
    for (;;) {
      const u64 at = atomicAdd(task_.work.taken, 1ull);
      if (at >= end) break;
      const int which = int(at / of_item), of_rest = int(at - u64(which) * of_item);
      const step_item item = task_.items[which];
      const int all_rows = item.queries * task_.work.shape.group.value();
      const int used = task_.work.shape.has(item.queries) ? 0 : int(ceil_div(all_rows, group_bytes::rows));
      if (used == 0) {
        skip_to(u64(which + 1) * of_item);
        continue;
      }
      const int down = of_rest / heads;
      if (down < stretches_ - used) {
        skip_to(at - u64(of_rest) + u64(stretches_ - used) * u64(heads));
        continue;
      }
      n = item.n, rows = rows_of(item), head = of_rest - down * heads;
      first = (stretches_ - 1 - down) * group_bytes::rows;
      return min(all_rows - first, group_bytes::rows);
    }
    // The last block to come here leaves the counter as it was.
    unsigned long long* const taken = task_.work.taken;
    if (atomicAdd(taken + 1, 1ull) == gridDim.x - 1) taken[0] = taken[1] = 0;
    return 0;
  }

 private:
  __device__ void skip_to(u64 at) const { atomicMax(task_.work.taken, at); }

  const Task& task_;
  int stretches_;
};

/// A block of warpgroups: loaders are the last of its warps.
template <class Task, int DimStep>
__device__ void attend_by_groups(const Task& task, const box_maps<Task::view_type::segments>& maps,
                                 unsigned char* memory) {
  // NOTE: three warpgroups' threads may have 504 in all.
  constexpr group_bytes bytes = group_bytes::of<typename Task::view_type>(DimStep);
  constexpr int of_loader = bytes.raw > 0 || bytes.tokens < 128 ? 72 : 56, of_multiplier = (504 - of_loader) / 2;
  if (threadIdx.x == 0) group_tiles<Task, DimStep>(task, memory).begin_barriers();
  __syncthreads();
  if (int(threadIdx.x) / 32 >= group_bytes::warps) {
    ptx::give_registers<of_loader>();
    group_loader<Task, DimStep>(task, maps, memory).run(stretches_of_rows<Task, DimStep>(task));
  } else {
    ptx::take_registers<of_multiplier>();
    group_of_rows<Task, DimStep>(task, memory).run();
  }
}

}  // namespace kvilt::inline KVILT_ABI::detail
