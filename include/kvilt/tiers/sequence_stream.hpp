#pragma once

#include <kvilt/cache/view.hpp>

namespace kvilt::inline KVILT_ABI::detail {

/// A sequence in one layer of a view, under the lengths of what it holds.
struct held_sequence {
  int row = 0;  // in the view's tables
  lengths n;
};

/// Where the `i`-th row of a sequence lies. NOTE: rows with gaps between them lie side by side all the same, and while they
/// are restored their positions are not on record yet.
template <class Retention>
kept_row stored_row(const Retention& keep, const held_sequence& s, int head, idx i) {
  if constexpr (leaves_gaps<Retention>())
    return {i, i, no_end};
  else
    return keep.at(s.n, s.row, head, i);
}

/// Bytes [first, last) of one plane of one head, records side by side in the order of their tokens, as they lie in
/// memory: `visit(bytes in memory, how many)` for each stretch.
template <class Segment, class Visit>
void each_stretch(const Segment& seg, const plane& p, int rows, idx record, const held_sequence& s, int head, idx first,
                  idx last, Visit&& visit) {
  for (idx at = first; at < last;) {
    idx nth = at / record, inside = at % record;
    const kept_row kept = stored_row(seg.retention, s, head, nth * rows);
    const place where = seg.layout.locate(s.row, head, kept.slot);
    const idx records = smaller(kept.run, where.run) / rows;
    const idx end = smaller(last, (nth + records) * record);
    unsigned char* memory = p.at(where, head, where.row / rows) + inside;
    if (p.record_stride == record) {
      visit(memory, end - at);
      at = end;
      continue;
    }
    for (; at < end; memory += p.record_stride - inside, inside = 0, ++nth) {
      const idx bytes = smaller((nth + 1) * record, end) - at;
      visit(memory, bytes);
      at += bytes;
    }
  }
}

/// `visit(plane, rows of a record, bytes of a record, records)` for each plane whose bytes are the view's own, K's before
/// V's and codes before params: of values that lie in keys there are none, and static scales are the caller's. Positions
/// that are on record come last.
template <class Segment, class Visit>
void each_own_plane(const Segment& seg, const held_sequence& s, int head, Visit&& visit) {
  using k_format = typename Segment::k_format;
  using v_format = typename Segment::v_format;
  const idx kept = seg.retention.count(s.n, s.row, head);
  visit(seg.planes.k_codes, k_format::rows, idx(seg.k.code_bytes()), kept / k_format::rows);
  visit(seg.planes.k_params, k_format::rows, idx(seg.k.param_bytes()), kept / k_format::rows);
  if constexpr (!shares_keys<v_format>) {
    visit(seg.planes.v_codes, v_format::rows, idx(seg.v.code_bytes()), kept / v_format::rows);
    visit(seg.planes.v_params, v_format::rows, idx(seg.v.param_bytes()), kept / v_format::rows);
  }
  if constexpr (leaves_gaps<typename Segment::retention_type>())
    visit(seg.retention.positions(), 1, idx(sizeof(std::int32_t)), idx(seg.retention.on_record_of(s.row, head).count));
}

/// What a layer holds of a sequence as a stream of bytes: by segment (sinks, body, tail), KV head and plane (K's codes and
/// params, V's codes and params, positions), records in the order of their tokens, without padding. So it depends on
/// formats, retention and lengths, not on the layout, and the same bytes fit into pages of any size.
template <class View>
idx stream_bytes(const View& view, const held_sequence& s) {
  idx bytes = 0;
  view.each([&](const auto& seg) {
    for (int head = 0; head < view.kv_heads(); ++head)
      each_own_plane(seg, s, head, [&](const plane&, int, idx record, idx records) { bytes += records * record; });
  });
  return bytes;
}

/// Bytes [first, last) of the stream: `visit(bytes in memory, how many)`, in order.
template <class View, class Visit>
void each_stretch(const View& view, const held_sequence& s, idx first, idx last, Visit&& visit) {
  idx begin = 0;  // of the plane, in the stream
  view.each([&](const auto& seg) {
    for (int head = 0; head < view.kv_heads() && begin < last; ++head)
      each_own_plane(seg, s, head, [&](const plane& p, int rows, idx record, idx records) {
        const idx bytes = records * record;
        if (begin < last && begin + bytes > first)
          each_stretch(seg, p, rows, record, s, head, larger(first - begin, 0), smaller(last - begin, bytes), visit);
        begin += bytes;
      });
  });
}

}  // namespace kvilt::inline KVILT_ABI::detail
