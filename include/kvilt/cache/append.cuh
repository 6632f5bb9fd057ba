#pragma once

#include <kvilt/cache/append_rows.cuh>
#include <kvilt/cache/append_tail.cuh>
#include <kvilt/gpu/gpu.cuh>

namespace kvilt::inline KVILT_ABI {
namespace detail {

/// What one launch of `append` is given; blocks for what leaves a tail come first, then K and V, then Q.
template <class K, class V, class Q>
struct append_work {
  row_source kv, queries;
  rows<const K> k;
  rows<const V> v;
  rows<Q> q;
  bool wide_k = false, wide_v = false, wide_q = false;  // rows lie on 16-byte lines
  int row_floats = 0;                                   // of a group's staged row
  tail_blocks tails;
  unsigned kv_blocks = 0, q_blocks = 0;
};

extern __shared__ float4 append_shared[];

/// Found rows lie first in shared memory, then floats.
inline constexpr int found_bytes = append_threads / fewest_append_lanes * int(sizeof(found_row));
static_assert(found_bytes % sizeof(float4) == 0);
__device__ inline float* shared_floats() {
  return reinterpret_cast<float*>(append_shared + found_bytes / sizeof(float4));
}

/// Rows of one block that are found, and the shared floats behind them.
struct block_rows {
  found_row* found = nullptr;  // [rows]
  turn_table table;
  float* row = nullptr;  // this group's

  __device__ block_rows(const row_source& from, int row_floats, const lane_group& g)
      : found(reinterpret_cast<found_row*>(append_shared)),
        table(shared_floats(), from.table_rows, from.turn.dims),
        row(shared_floats() + turn_table::floats(from.table_rows, from.turn.dims) +
            int(threadIdx.x) / g.size * row_floats) {}
  __device__ lane_turn turn_of(int r) const {
    return {row, table.sines + r * table.pitch, table.cosines + r * table.pitch};
  }
};

/// K and V that lanes hold on their way.
template <class View, class Work>
__device__ void append_held(const View& view, const Work& w, const block_tasks& t, const block_rows& b,
                            const lane_group& g) {
  const found_row& found = b.found[t.row];
  const bool alive = t.here && found.alive;
  const int k_live = t.has_k ? g.live(view.k_dim()) : 0;
  const int v_live = !View::values_in_keys && t.has_v ? g.live(view.v_dim()) : 0;
  const int n0 = lane_numbers * g.lane;
  raw_numbers<std::remove_const_t<std::remove_pointer_t<decltype(w.k.data)>>> raw_k;
  raw_numbers<std::remove_const_t<std::remove_pointer_t<decltype(w.v.data)>>> raw_v;
  if (alive) {
    if (k_live) raw_k.load(w.k.at(t.first_row + t.row, t.head) + n0, k_live, w.wide_k);
    if (v_live) raw_v.load(w.v.at(t.first_row + t.row, t.head) + n0, v_live, w.wide_v);
  }
  const bool turns = w.kv.turn.dims > 0;
  if (turns) {
    fill_table<false>(w.kv, t.first_row, t.rows, b.found, b.table);
    __syncthreads();
  }
  const places<View> to(view, found, t.head, alive);
  float k[lane_numbers], v[lane_numbers];
#pragma unroll
  for (int i = 0; i < lane_numbers; ++i) k[i] = raw_k[i], v[i] = raw_v[i];
  if (t.has_k) {
    if (turns) b.turn_of(t.row).apply(w.kv.turn, g, k);
    rotate_lanes<typename View::k_rotation>(k, g, view.k_dim());
  }
  if constexpr (!View::values_in_keys)
    if (t.has_v) rotate_lanes<typename View::v_rotation>(v, g, view.v_dim());
  put_lanes(view, to, t, k, v, g, b.row);
}

/// K and V of any length in any rotation: through shared memory, encoded as on the host.
template <class View, class Work>
__device__ void append_staged(const View& view, const Work& w, const block_tasks& t, const block_rows& b,
                              const lane_group& g) {
  const found_row& found = b.found[t.row];
  const bool turns = w.kv.turn.dims > 0;
  if (turns) {
    fill_table<false>(w.kv, t.first_row, t.rows, b.found, b.table);
    __syncthreads();
  }
  const bool alive = t.here && found.alive;
  const places<View> to(view, found, t.head, alive);
  if (t.has_k) {
    load_lanes(w.k.at(t.first_row + t.row, t.head), view.k_dim(), w.wide_k, alive, g, b.row);
    const lane_turn turned = b.turn_of(t.row);
    if (turns) turn_row<as_they_lie>(w.kv.turn, turned.sines, turned.cosines, g, b.row);
    put_staged<false>(view, to, t.head, g, b.row);
  }
  if constexpr (!View::values_in_keys)
    if (t.has_v) {
      load_lanes(w.v.at(t.first_row + t.row, t.head), view.v_dim(), w.wide_v, alive, g, b.row);
      put_staged<true>(view, to, t.head, g, b.row);
    }
}

/// RoPE on rows of Q where they lie, which lanes hold on their way.
template <class Q>
__device__ void turn_held(const row_source& from, const rows<Q>& q, bool wide, const block_tasks& t,
                          const block_rows& b, const lane_group& g) {
  const int n0 = lane_numbers * g.lane;
  const int live = t.here && b.found[t.row].alive ? g.live(q.dim) : 0;
  Q* const at = q.at(t.first_row + t.row, t.head) + n0;
  raw_numbers<Q> raw;
  raw.load(at, live, wide);
  fill_table<true>(from, t.first_row, t.rows, b.found, b.table);
  __syncthreads();
  float x[lane_numbers];
#pragma unroll
  for (int i = 0; i < lane_numbers; ++i) x[i] = raw[i];
  b.turn_of(t.row).apply(from.turn, g, x);
  const int first = from.turn.first - n0, last = first + from.turn.dims;  // what turns, among this lane's
  if (first <= 0 && last >= live) {
    std::uint32_t word[raw_numbers<Q>::words];
    pack_numbers<Q>(x, word);
    store_words(reinterpret_cast<unsigned char*>(at), word, live);
  } else {
#pragma unroll
    for (int i = 0; i < lane_numbers; ++i)
      if (i < live && i >= first && i < last) store(at[i], x[i]);
  }
}

/// The same of rows of any length.
template <class Q>
__device__ void turn_staged(const row_source& from, const rows<Q>& q, bool wide, const block_tasks& t,
                            const block_rows& b, const lane_group& g) {
  fill_table<true>(from, t.first_row, t.rows, b.found, b.table);
  __syncthreads();
  const bool alive = t.here && b.found[t.row].alive;
  Q* const at = q.at(t.first_row + t.row, t.head);
  const rope& turn = from.turn;
  load_lanes(at, q.dim, wide, alive, g, b.row);
  const lane_turn turned = b.turn_of(t.row);
  turn_row<as_they_lie>(turn, turned.sines, turned.cosines, g, b.row);
  for (int i = turn.first + g.lane; alive && i < turn.first + turn.dims; i += g.size) store(at[i], b.row[i]);
}

/// row_source's heads are Q's.
template <class Q>
__device__ void turn_queries_block(const row_source& from, const rows<Q>& q, bool wide, int row_floats, unsigned block,
                                   const lane_group& g) {
  const block_tasks t(from, block, g);
  const block_rows b(from, row_floats, g);
  find_rows<true>(from, t.first_row, t.rows, b.found);
  __syncthreads();
  if (q.dim <= longest_lane_row)
    turn_held(from, q, wide, t, b, g);
  else
    turn_staged(from, q, wide, t, b, g);
}

template <class View, class Work>
__global__ void __launch_bounds__(append_threads)
    append_kernel(const __grid_constant__ View view, const __grid_constant__ Work w) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const lane_group g(append_lanes(view));
  unsigned block = blockIdx.x;
  if (block < w.tails.blocks) {
    flush_block(view, w.kv.items, w.tails, block, g, shared_floats(), w.row_floats);
    return;
  }
  block -= w.tails.blocks;
  if (block >= w.kv_blocks) {
    turn_queries_block(w.queries, w.q, w.wide_q, w.row_floats, block - w.kv_blocks, g);
    return;
  }
  const block_tasks t(w.kv, block, g);
  const block_rows b(w.kv, w.row_floats, g);
  find_rows<false>(w.kv, t.first_row, t.rows, b.found);
  __syncthreads();
  if (rows_in_lanes(view))
    append_held(view, w, t, b, g);
  else
    append_staged(view, w, t, b, g);
}

template <class Q>
__global__ void __launch_bounds__(append_threads)
    turn_queries_kernel(const __grid_constant__ row_source from, rows<Q> q, bool wide, int row_floats, int lanes) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  turn_queries_block(from, q, wide, row_floats, blockIdx.x, lane_group(lanes));
}

/// A step that a launch may trust as far as the host sees it.
inline void check_device_step(const device_step& s) {
  expects(s.size >= 0 && s.q_rows >= 0 && s.kv_rows >= 0, "a step has ", s.size, " sequences, at most ", s.q_rows,
          " rows of Q and ", s.kv_rows, " of K and V; none may be negative");
  check_memory(s.items, s.size, "the list of a step's ", s.size, " sequences");
}

/// Rows of one kind. Throws `invalid_argument` where they are too many.
inline row_source source_of(const device_step& s, const rope& turn, idx rows, int heads, int lanes) {
  constexpr idx most = idx(1) << 31;
  expects(bytes_of(rows, heads) < most, "a step of ", rows, " rows of ", heads,
          " heads; fewer than 2^31 are supported");
  row_source from;
  from.items = s.items;
  from.size = s.size;
  from.rope_positions = s.rope_positions;
  from.turn = turn;
  from.heads = fast_divisor(heads);
  from.tasks = s.size ? std::uint32_t(rows * heads) : 0;
  const int groups = append_threads / lanes;
  from.table_rows = int(smaller(groups, (groups - 1) / larger(heads, 1) + 2));
  return from;
}
inline unsigned blocks_of(const row_source& from, int lanes) {
  const std::uint32_t groups = append_threads / std::uint32_t(lanes * from.shares);
  return (from.tasks + groups - 1) / groups;
}

/// Shared memory of a launch. Throws `invalid_argument` where a block cannot have it.
inline std::size_t append_bytes(int table_rows, const rope& turn, int row_floats, int lanes, std::size_t tile_bytes) {
  const std::size_t floats = std::size_t(turn_table::floats(table_rows, turn.dims)) +
                             std::size_t(append_threads / lanes) * std::size_t(row_floats);
  const std::size_t bytes = found_bytes + (floats * sizeof(float) > tile_bytes ? floats * sizeof(float) : tile_bytes);
  if (bytes > 48 * 1024) {
    const std::size_t most = std::size_t(device_limits::current().shared_bytes);
    expects(bytes <= most, "append's rows take ", bytes, " bytes of shared memory; the device has ", most);
  }
  return bytes;
}

template <class T>
concept caller_number = std::is_same_v<T, float> || std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>;
template <class T>
rows<const T> read_only(const rows<T>& x) {
  return {x.data, x.token_stride, x.head_stride, x.heads, x.dim};
}
template <class T>
rows<const T> read_only(const rows<const T>& x) {
  return x;
}

template <class Q>
void check_device_queries(const device_step& s, const rows<Q>& q, int k_dim) {
  static_assert(caller_number<Q>, "kvilt: rows of Q are float, float16 or bfloat16, and not const");
  check_queries(s, q, k_dim);
  check_written("rows of Q", q, s.q_rows);
  expects(s.q_rows == 0 || q.heads >= 1, "Q has ", q.heads, " heads; at least 1 is needed");
  expects(s.rope_positions == nullptr || s.q_rows == s.kv_rows, "a step of ", s.q_rows, " rows of Q and ", s.kv_rows,
          " of K and V has positions for RoPE; as many queries as tokens are needed");
}

/// What the host can say before the launch.
template <class View, class K, class V>
void check_device_append(const View& view, const device_step& s, rows<const K> k, rows<const V> v, const rope& turn) {
  static_assert(caller_number<K> && caller_number<V>, "kvilt: rows of K and V are float, float16 or bfloat16");
  check_device_step(s);
  check_given(view, s, k, v);
  check_view(view);
  check_records(view);
  if (s.size > 0 && s.kv_rows > 0) view.each([](const auto& seg) { check_bases(seg); });
  bool tiles = false, tail = false;
  view.each([&]<class Segment>(const Segment&) {
    tiles = tiles || is_tile<Segment>;
    tail = tail || tail_segment<Segment>;
  });
  expects(!tiles || tail || s.kv_rows == 0, s.kv_rows,
          " tokens are appended to a tile format; its tokens come through a 16-bit tail");
  check_rope_of(view, turn);
}

/// `q.data` null: no queries.
template <class View, class K, class V, class Q>
void launch_append(const gpu& exec, const View& view, const device_step& s, rows<const K> k, rows<const V> v,
                   const rows<Q>& q, const rope& turn) {
  const int lanes = append_lanes(view);
  append_work<K, V, Q> w;
  w.k = k, w.v = v, w.q = q;
  w.wide_k = on_lines(k), w.wide_v = on_lines(v), w.wide_q = on_lines(q);
  w.kv = source_of(s, turn, s.kv_rows, view.kv_heads(), lanes);
  constexpr unsigned few = 128;  // blocks: about one for each multiprocessor
  if (!View::values_in_keys && blocks_of(w.kv, lanes) < few) w.kv.shares = 2;
  w.queries = source_of(s, turn, q.data && turn.dims ? s.q_rows : 0, q.data ? q.heads : 1, lanes);
  w.tails = tail_blocks::of(view, s.size);
  w.kv_blocks = blocks_of(w.kv, lanes);
  w.q_blocks = blocks_of(w.queries, lanes);
  const int longest = int(larger(view.k_dim(), View::values_in_keys ? 0 : view.v_dim()));
  w.row_floats = turn.dims || stages_rows(view) ? staged_size(longest) : 0;
  const int table_rows = int(larger(w.kv.table_rows, w.queries.table_rows));
  const std::size_t bytes = append_bytes(table_rows, turn, w.row_floats, lanes, tile_bytes(view));
  launch(exec, append_kernel<View, append_work<K, V, Q>>, dim3(w.tails.blocks + w.kv_blocks + w.q_blocks),
         dim3(append_threads), bytes, true, view, w);
}

}  // namespace detail

/// RoPE on the step's queries, in place, in device memory: q [s.q_rows][q heads][k_dim], float, float16 or bfloat16.
/// `turn.turns` is in device memory. Throws `invalid_argument` before the launch.
template <class Q>
void rotate_queries(const gpu& exec, const device_step& s, rows<Q> q, int k_dim, const rope& turn) {
  detail::check_device_step(s);
  detail::check_rope(turn, k_dim);
  detail::check_device_queries(s, q, k_dim);
  if (s.q_rows == 0 || turn.dims == 0) return;
  const int lanes = detail::append_lanes(k_dim), row_floats = detail::staged_size(k_dim);
  const detail::row_source from = detail::source_of(s, turn, s.q_rows, q.heads, lanes);
  detail::launch(exec, detail::turn_queries_kernel<Q>, dim3(detail::blocks_of(from, lanes)),
                 dim3(detail::append_threads), detail::append_bytes(from.table_rows, turn, row_floats, lanes, 0), true,
                 from, q, detail::on_lines(q), row_floats, lanes);
}

/// The host's `append` on a GPU, in one launch: RoPE on K, rotation, quantisation, scatter, and what leaves a 16-bit tail
/// is moved into the body. k: [s.kv_rows][kv heads][k_dim], v: [s.kv_rows][kv heads][v_dim], of float, float16 or
/// bfloat16, in device memory as `turn.turns`, the step's items and the view's tables are; neither is changed. Items come
/// in the order of their rows, as `plan` lays them. A negative sequence, a slot of -1 and a page of -1 have nothing
/// written.
///
/// Bytes are the host's; where RoPE turns, K's numbers differ by its sines and cosines alone. Throws `invalid_argument`
/// before the launch, of what the host can see: lengths and tables in device memory are the planner's affair. Done again
/// in the same step it writes the same bytes.
template <device_view View, class K, class V>
void append(const gpu& exec, const View& view, const device_step& s, rows<K> k, rows<V> v, const rope& turn) {
  using number = std::remove_const_t<K>;
  detail::check_device_append(view, s, detail::read_only(k), detail::read_only(v), turn);
  detail::launch_append(exec, view, s, detail::read_only(k), detail::read_only(v), rows<number>{}, turn);
}

/// The same for keys that RoPE has been applied to, or that need none.
template <device_view View, class K, class V>
void append(const gpu& exec, const View& view, const device_step& s, rows<K> k, rows<V> v) {
  append(exec, view, s, k, v, rope{});
}

/// The same for a view in which V is a part of K's records; RoPE may turn the numbers of K that are not V.
template <device_view View, class K>
void append(const gpu& exec, const View& view, const device_step& s, rows<K> k,
            const rope& turn = {}) requires(View::values_in_keys) {
  append(exec, view, s, k, rows<K>{}, turn);
}

/// The same, and in the same launch RoPE applied to q in place: [s.q_rows][q heads][k_dim]; done again it would turn q
/// again.
template <device_view View, class Q, class K, class V>
void append(const gpu& exec, const View& view, const device_step& s, rows<Q> q, rows<K> k, rows<V> v,
            const rope& turn) {
  detail::check_device_append(view, s, detail::read_only(k), detail::read_only(v), turn);
  detail::check_device_queries(s, q, view.k_dim());
  detail::launch_append(exec, view, s, detail::read_only(k), detail::read_only(v), q, turn);
}

}  // namespace kvilt::inline KVILT_ABI
