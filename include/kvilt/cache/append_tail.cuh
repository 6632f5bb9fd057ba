#pragma once

#include <kvilt/cache/append_rows.cuh>

/// \file
/// Tokens that leave a 16-bit tail in the step, on the device: `row_writer::flush` by blocks.

namespace kvilt::inline KVILT_ABI::detail {

template <class Segment>
concept tail_segment = requires(const Segment s, lengths n) {
  s.retention.leaving(n);
};

/// Tokens that a body takes at a time.
template <class Segment>
KVILT_HD constexpr int tile_rows() {
  constexpr int k = Segment::k_format::rows, v = Segment::v_format::rows;
  static_assert(k >= v ? k % v == 0 : v % k == 0, "kvilt: tiles of K and V must divide each other");
  return k > v ? k : v;
}

/// Blocks for what leaves the tail: each has a part of what one sequence and head moves.
struct tail_blocks {
  unsigned blocks = 0;
  int parts = 1;
  int kv_heads = 1;

  /// NOTE: after a prompt as much leaves at once as the tail has room for; what a step moves mostly is a token or none.
  template <class View>
  static tail_blocks of(const View& view, int size) {
    constexpr idx enough = 256;  // blocks, for any device
    tail_blocks t;
    t.kv_heads = view.kv_heads();
    view.each([&](const auto& seg) {
      if constexpr (tail_segment<std::remove_cvref_t<decltype(seg)>>) {
        const idx units = idx(size) * view.kv_heads();
        const idx most = smaller(slots_of(seg.layout, 0), 1024) / 32;
        t.parts = int(larger(1, smaller(most, enough / larger(units, 1))));
        expects(units < idx(1) << 30, "a step of ", size,
                " sequences; fewer than 2^30 of them and heads are supported");
        t.blocks = unsigned(units * t.parts);
      }
    });
    return t;
  }
};

/// Shared memory of a tile on its way: K's rows, or V's, whichever are longer.
template <class View>
constexpr std::size_t tile_bytes(const View& view) {
  std::size_t most = 0;
  view.each([&](const auto& seg) {
    using segment_type = std::remove_cvref_t<decltype(seg)>;
    if constexpr (is_tile<segment_type>) {
      const int dim = int(larger(view.k_dim(), View::values_in_keys ? 0 : view.v_dim()));
      const std::size_t bytes = sizeof(float) * std::size_t(tile_rows<segment_type>()) * std::size_t(dim);
      most = bytes > most ? bytes : most;
    }
  });
  return most;
}

/// One sequence's and head's part of what leaves.
struct leaving_part {
  const step_item& item;
  int head;
  int part, parts;
  position_range range;
};

template <bool OfV, class Segment>
KVILT_HD const auto& format_of(const Segment& seg) {
  if constexpr (OfV)
    return seg.v;
  else
    return seg.k;
}
template <bool OfV, class Segment>
KVILT_HD row_ref row_of(const Segment& seg, place p, int head) {
  if constexpr (OfV)
    return seg.v_row(p, head);
  else
    return seg.k_row(p, head);
}

/// One token's K, or V, from the tail into a body of token formats, by a group, or nothing.
template <bool OfV, class Tail, class To>
__device__ void move_row(const Tail& tail, const To& to, place from, place at, int head, bool alive,
                         const lane_group& g, float* row) {
  const auto& f = format_of<OfV>(to);
  using format = std::remove_cvref_t<decltype(f)>;
  const row_ref source = row_of<OfV>(tail, from, head), target = row_of<OfV>(to, at, head);
  if (lanes_encode<format> && f.dim() <= longest_lane_row) {
    const int live = alive ? g.live(f.dim()) : 0;
    float x[lane_numbers] = {};
#pragma unroll
    for (int i = 0; i < lane_numbers; i += 8)
      if (i < live)
        format_of<OfV>(tail).template decode<8>(source, g.lane * lane_numbers + i,
                                                *reinterpret_cast<float(*)[8]>(x + i));
    put_record(f, x, alive, g, row, target);
  } else {
    g.sync();
    decode_lanes(format_of<OfV>(tail), source, alive, g, row);
    if (g.lane == 0 && alive) f.encode(row, target);
  }
}

template <class View, class Tail, class To>
__device__ void flush_rows(const View&, const Tail& tail, const To& to, const leaving_part& l, const lane_group& g,
                           float* row) {
  const int groups = append_threads / g.size, group = int(threadIdx.x) / g.size;
  for (idx first = l.range.first + l.part * groups; first < l.range.last; first += idx(l.parts) * groups) {
    const idx t = first + group;
    const idx slot = t < l.range.last ? to.retention.slot(l.item.n, l.item.sequence, l.head, t) : -1;
    place from, at;
    if (slot >= 0) {
      from = tail.layout.locate(l.item.sequence, l.head, tail.retention.slot_of(t));
      at = to.layout.locate(l.item.sequence, l.head, slot);
    }
    const bool alive = slot >= 0 && from.page >= 0 && at.page >= 0;
    move_row<false>(tail, to, from, at, l.head, alive, g, row);
    if constexpr (!View::values_in_keys) move_row<true>(tail, to, from, at, l.head, alive, g, row);
  }
}

template <class F>
concept has_parts = requires(const F f, const float* x, row_ref r) {
  f.encode_part(x, r, F::phases, f.parts(0));
};
/// Records that a block's threads share out. rows: [records][F::rows][dim], shared
template <int Records, class F, class Target>
__device__ void encode_parts(const F& f, const float* rows, const Target& target) {
  for (int phase = 0; phase < F::phases; ++phase) {
    const int parts = f.parts(phase);
    for (int i = int(threadIdx.x); i < Records * parts; i += append_threads) {
      const int r = i / parts;
      f.encode_part(rows + idx(r) * F::rows * f.dim(), target(r), phase, i - r * parts);
    }
    __syncthreads();
  }
}

/// K, or V, of one tile from the tail, by a block. rows: [tile][dim], shared
template <bool OfV, class Tail, class To>
__device__ void move_tile(const Tail& tail, const To& to, idx first, place at, const leaving_part& l, float* rows) {
  const auto& f = format_of<OfV>(to);
  using format = std::remove_cvref_t<decltype(f)>;
  constexpr int tile = tile_rows<To>(), record = format::rows;
  const int dim = f.dim(), chunks = dim / 8;
  for (int i = int(threadIdx.x); i < tile * chunks; i += append_threads) {
    const int t = i / chunks, n = 8 * (i - t * chunks);
    const place from = tail.layout.locate(l.item.sequence, l.head, tail.retention.slot_of(first + t));
    format_of<OfV>(tail).template decode<8>(row_of<OfV>(tail, from, l.head), n,
                                            *reinterpret_cast<float(*)[8]>(rows + idx(t) * dim + n));
  }
  __syncthreads();
  const auto target = [&](int r) { return row_of<OfV>(to, {at.page, at.row + r * record, 1}, l.head); };
  if constexpr (has_parts<format>) {
    encode_parts<tile / record>(f, rows, target);
  } else {
    for (int r = int(threadIdx.x); r < tile / record; r += append_threads)
      f.encode(rows + idx(r) * record * dim, target(r));
    __syncthreads();
  }
}

template <class View, class Tail, class To>
__device__ void flush_tiles(const View&, const Tail& tail, const To& to, const leaving_part& l, float* rows) {
  constexpr int tile = tile_rows<To>();
  for (idx t = l.range.first + l.part * tile; t + tile <= l.range.last; t += idx(l.parts) * tile) {
    const idx slot = to.retention.slot(l.item.n, l.item.sequence, l.head, t);
    if (slot < 0) continue;
    const place at = to.layout.locate(l.item.sequence, l.head, slot);
    const place from = tail.layout.locate(l.item.sequence, l.head, tail.retention.slot_of(t));
    if (from.page < 0 || at.page < 0) continue;
    move_tile<false>(tail, to, t, at, l, rows);
    if constexpr (!View::values_in_keys) move_tile<true>(tail, to, t, at, l, rows);
  }
}

template <class View, class Tail>
__device__ void flush_tail(const View& view, const Tail& tail, const step_item& item, int head, int part, int parts,
                           const lane_group& g, float* shared, int row_floats) {
  const leaving_part l{item, head, part, parts, tail.retention.leaving(item.n)};
  if (l.range.first >= l.range.last) return;
  view.each([&](const auto& to) {
    using segment_type = std::remove_cvref_t<decltype(to)>;
    if constexpr (tail_segment<segment_type>)
      return;
    else if constexpr (is_tile<segment_type>)
      flush_tiles(view, tail, to, l, shared);
    else
      flush_rows(view, tail, to, l, g, shared + int(threadIdx.x) / g.size * row_floats);
  });
}

/// All that one block moves. shared: a tile's rows, or a row of each group
template <class View>
__device__ void flush_block(const View& view, const step_item* items, const tail_blocks& t, unsigned block,
                            const lane_group& g, float* shared, int row_floats) {
  const int part = int(block % unsigned(t.parts)), unit = int(block / unsigned(t.parts));
  const step_item item = items[unit / t.kv_heads];
  if (item.sequence < 0) return;
  view.each([&](const auto& tail) {
    if constexpr (tail_segment<std::remove_cvref_t<decltype(tail)>>)
      flush_tail(view, tail, item, unit % t.kv_heads, part, t.parts, g, shared, row_floats);
  });
}

}  // namespace kvilt::inline KVILT_ABI::detail
