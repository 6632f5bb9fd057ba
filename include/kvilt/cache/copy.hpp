#pragma once

#include <kvilt/cache/segment.hpp>

#include <cstddef>
#include <cstring>

namespace kvilt::inline KVILT_ABI::detail {

/// NOTE: params of more than one record, as scales of a tensor, are where they should be already.
inline void copy_bytes(const unsigned char* from, unsigned char* to, idx bytes) {
  if (from != to && bytes > 0) std::memcpy(to, from, std::size_t(bytes));
}

/// One row of K and V, of token formats, between segments of the same formats.
template <kv_segment From, kv_segment To>
void copy_row(const From& from, place at, const To& to, place as, int head) {
  static_assert(From::k_format::rows == 1 && From::v_format::rows == 1);
  const row_ref k = from.k_row(at, head), new_k = to.k_row(as, head);
  copy_bytes(k.codes, new_k.codes, from.k.code_bytes());
  copy_bytes(k.params, new_k.params, from.k.param_bytes());
  const row_ref v = from.v_row(at, head), new_v = to.v_row(as, head);
  copy_bytes(v.codes, new_v.codes, from.v.code_bytes());
  copy_bytes(v.params, new_v.params, from.v.param_bytes());
}

/// `rows` rows of a plane whose records have `record_rows` each, from page to page: at once where they lie side by side.
inline void copy_run(const plane& p, place from, place to, int head, int rows, int record_rows, idx bytes) {
  const int first = from.row / record_rows, first_to = to.row / record_rows;
  const int count = (from.row + rows - 1) / record_rows - first + 1;
  if (p.record_stride == bytes) return copy_bytes(p.at(from, head, first), p.at(to, head, first_to), count * bytes);
  for (int i = 0; i < count; ++i) copy_bytes(p.at(from, head, first + i), p.at(to, head, first_to + i), bytes);
}

/// Every row that the lengths `n` name, of one head, byte for byte from sequence `from` to sequence `to` of the view, in
/// parts where each sequence has a place of its own; pages are the owner's affair.
template <class View>
void copy_sequence(const View& view, lengths n, int from, int to, int head) {
  view.each([&](const auto& seg) {
    using segment_type = std::remove_cvref_t<decltype(seg)>;
    if constexpr (!fixed_layout<typename segment_type::layout_type>) return;
    constexpr int k_rows = segment_type::k_format::rows, v_rows = segment_type::v_format::rows;
    const idx count = seg.retention.count(n, from, head);
    for (idx i = 0; i < count;) {
      const kept_row kept = seg.retention.at(n, from, head, i);
      const place at = seg.layout.locate(from, head, kept.slot), as = seg.layout.locate(to, head, kept.slot);
      const int run = int(smaller(smaller(kept.run, count - i), smaller(at.run, as.run)));
      copy_run(seg.planes.k_codes, at, as, head, run, k_rows, seg.k.code_bytes());
      copy_run(seg.planes.k_params, at, as, head, run, k_rows, seg.k.param_bytes());
      copy_run(seg.planes.v_codes, at, as, head, run, v_rows, seg.v.code_bytes());
      copy_run(seg.planes.v_params, at, as, head, run, v_rows, seg.v.param_bytes());
      i += run;
    }
    if constexpr (requires { seg.retention.copy_record(from, to, head); }) seg.retention.copy_record(from, to, head);
  });
}

}  // namespace kvilt::inline KVILT_ABI::detail
