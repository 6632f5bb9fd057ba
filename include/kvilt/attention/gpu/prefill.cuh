#pragma once

#include <kvilt/attention/gpu/prefill_tiles.cuh>
#include <kvilt/attention/gpu/score_rows.cuh>

namespace kvilt::inline KVILT_ABI::detail {

/// The attention of one block: of up to `rows` query rows of one item and KV head, which are far more than the few of a
/// decode step, so that arithmetic is what takes time. Scores are Q K^T and results P V, by tensor cores, query rows
/// being rows of both products; each warp has its own rows, and all share the tiles of keys and values.
template <class Task, int DimStep>
class block_of_rows
    : score_rows<Task, DimStep, block_bytes::of<typename Task::view_type>(DimStep).bands,
                 block_bytes::of<typename Task::view_type>(DimStep).tokens, prefill_tiles<Task, DimStep>> {
  static constexpr block_bytes bytes = block_bytes::of<typename Task::view_type>(DimStep);
  using base = score_rows<Task, DimStep, bytes.bands, bytes.tokens, prefill_tiles<Task, DimStep>>;
  using u32 = ptx::u32;
  using base::bands, base::tokens, base::columns, base::warp_rows_, base::all;
  using base::task_, base::tiles_, base::reference_, base::warp, base::lane, base::g, base::t, base::share, base::unit;
  static constexpr int v_columns = bytes.v_dim / 8;

 public:
  __device__ block_of_rows(const Task& task, unsigned char* memory) : base(task, memory) {}

  /// Rows [first, first + rows) of item `item`, of those that there are.
  __device__ void run(const step_item& item, int head, int first) {
    take_rows(item, head, first + warp() * warp_rows_);
    clear();
    tiles_.sit(item, head, int(where_of(task_, rows_of(item), head, first).q_position), seen_by_warp());
    task_.view.each([&](const auto& seg) { take_segment(seg); });
    leave();
  }

 private:
  /// The warp's rows are those of an item from `first` on, of all rows that there are.
  __device__ void take_rows(const step_item& item, int head, int first) {
    const int left = item.queries * task_.work.shape.group.value() - first;
    if (lane() == 0)
      tiles_.share(warp()) = {rows_of(item), head, first, left < 0 ? 0 : left < warp_rows_ ? left : warp_rows_};
    __syncwarp();
  }
  __device__ int_range seen_by_warp() const {
    const warp_share& s = share();
    if (s.count == 0) return {0x7fffffff, 0};
    return seen_by_rows(task_, s.item, s.head, s.first, s.count);
  }
  __device__ void clear() {
    this->clear_sums();
#pragma unroll
    for (int m = 0; m < bands; ++m) {
#pragma unroll
      for (int n = 0; n < v_columns; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) out_[m][n][j] = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) row_sum_[m][j] = 0;
    }
  }

  template <class Segment>
  __device__ void take_segment(const Segment& seg) {
    using tile = prefill_tile<Segment, DimStep>;
    if (!tiles_.begin(seg)) return;
    this->prepare_queries(seg);
    tiles_.start(seg);
    while (tiles_.more()) {
      // Keys and values are there; those of the next tile are asked for.
      const bool whole = tiles_.next(seg, [&](position_range range) { return all_see(seg, range); });
      if (share().count == 0) continue;
      // Scores.
      float c[bands][columns][4];
      multiply_keys<tile>(c);
      // Weights, and their part in the results.
      this->template finish<tile>(seg, c, whole, [this](const float(&factors)[bands][2]) { scale_results(factors); });
      multiply_values<tile>(c);
    }
  }

  /// Do all rows of the warp see all tokens of these positions?
  template <class Segment>
  __device__ bool all_see(const Segment& seg, position_range range) const {
    return __all_sync(all, sees_all(task_, seg, unit().at(lane() % warp_rows_), range) || share().count == 0);
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
  __device__ void scale_results(const float (&factors)[bands][2]) {
#pragma unroll
    for (int m = 0; m < bands; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        row_sum_[m][2 * h] *= factors[m][h], row_sum_[m][2 * h + 1] *= factors[m][h];
#pragma unroll
        for (int n = 0; n < v_columns; ++n) out_[m][n][2 * h] *= factors[m][h], out_[m][n][2 * h + 1] *= factors[m][h];
      }
  }
  /// NOTE: where weights are the values' alone, they are multiplied by ones for their sums.
  template <class Tile>
  __device__ void multiply_values(const float (&w)[bands][columns][4]) {
    constexpr int pitch = Tile::v_pitch;
    constexpr auto numbers = Tile::v::numbers;
    const u32 values = tiles_.values(), first = chunk_at<pitch>(lane() % 16, lane() / 16);
#pragma unroll
    for (int k = 0; k < tokens / 16; ++k) {
      u32 a[bands][4];
#pragma unroll
      for (int m = 0; m < bands; ++m) this->template pack_weights<Tile>(w, m, k, a[m]);
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

  /// Writes the rows' results. NOTE: all of them go to shared memory before any is written, so that no register waits.
  __device__ void leave() {
    __syncthreads();
#pragma unroll
    for (int m = 0; m < bands; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float sum, zero;
        this->row_sums(m, h, sum, zero);
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

  float out_[bands][v_columns][4];
  float row_sum_[bands][4];  // by the tensor cores: of all lanes' numbers
};

}  // namespace kvilt::inline KVILT_ABI::detail
