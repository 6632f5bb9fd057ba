#pragma once

#include <kvilt/cache/scales.hpp>
#include <kvilt/cache/step.hpp>
#include <kvilt/cache/view.hpp>

namespace kvilt::inline KVILT_ABI::detail {

/// Rows that the format and the kernels can take.
template <kv_format F>
void check_format_dim(const char* which, const F& f) {
  expects(f.dim() >= 8 && f.dim() % 8 == 0, which, " rows have ", f.dim(),
          " numbers; a positive multiple of 8 is needed");
  if constexpr (requires { f.first(), f.second(); })
    check_format_dim(which, f.first()), check_format_dim(which, f.second());
  if constexpr (requires { f.group(); })
    expects(f.group() > 0 && f.dim() % f.group() == 0, which, " rows have ", f.dim(), " numbers; whole groups of ",
            f.group(), " are needed");
  if constexpr (requires { F::longest_dim; })
    expects(f.dim() <= F::longest_dim, which, " rows have ", f.dim(), " numbers; the format takes ", F::longest_dim);
}

/// A V that lies in K's record lies in the K of its own segment.
template <kv_segment Segment>
void check_shared_keys(const Segment& seg) {
  if constexpr (shares_keys<typename Segment::v_format>) {
    const auto& k = seg.v.k();
    expects(k.dim() == seg.k.dim() && k.code_bytes() == seg.k.code_bytes() && seg.v.dim() <= k.dim(), "V is the first ",
            seg.v.dim(), " of ", k.dim(), " numbers in ", k.code_bytes(), " bytes; K's rows have ", seg.k.dim(), " in ",
            seg.k.code_bytes());
    expects(seg.planes.v_codes == seg.planes.k_codes && seg.planes.v_params == seg.planes.k_params,
            "V lies in K's records; its planes must be K's");
  }
}

/// A view that the verbs may trust, also when it was made by hand.
template <kv_view View>
void check_view(const View& view) {
  expects(view.kv_heads() >= 1, "a view of ", view.kv_heads(), " KV heads; at least 1 is needed");
  view.each([&](const auto& seg) {
    check_format_dim("K", seg.k);
    check_format_dim("V", seg.v);
    expects(seg.k.dim() == view.k_dim() && seg.v.dim() == view.v_dim(), "segments of one view have rows of ",
            view.k_dim(), " and ", view.v_dim(), ", and of ", seg.k.dim(), " and ", seg.v.dim(), " numbers");
    check_shared_keys(seg);
    check_static_scales<View::space>("K", seg.k, seg.planes.k_params, view.kv_heads());
    check_static_scales<View::space>("V", seg.v, seg.planes.v_params, view.kv_heads());
  });
}

/// Slots that the layout has for a sequence; without end where it does not say.
template <kv_layout Layout>
idx slots_of(const Layout& layout, int sequence) {
  if constexpr (requires { layout.slots(); })
    return layout.slots();
  else if constexpr (requires { layout.slots(sequence); })
    return layout.slots(sequence);
  else
    return no_end;
}

/// Rows `row` to the end of its run lie within the layout's slots.
template <kv_segment Segment>
void check_slots(const Segment& seg, const step_item& item, int head, idx row, idx count) {
  const kept_row kept = seg.retention.at(item.n, item.sequence, head, row);
  const idx last = kept.slot + smaller(kept.run, count - row) - 1, slots = slots_of(seg.layout, item.sequence);
  expects(kept.slot >= 0 && last < slots, "sequence ", item.sequence, " of ", item.n.after, " tokens needs slots ",
          kept.slot, " to ", last, "; its layout has ", slots);
}

template <kv_segment Segment>
void check_item_capacity(const Segment& seg, const step_item& item, int kv_heads) {
  for (int head = 0; head < kv_heads; ++head) {
    const idx count = seg.retention.count(item.n, item.sequence, head);
    if (count == 0) continue;
    // NOTE: where slots are reused in turn, the highest is neither the first nor the last row's.
    check_slots(seg, item, head, 0, count);
    check_slots(seg, item, head, count - 1, count);
  }
}

/// The step's rows lie within what the layout has for a sequence: its neighbours' memory is safe.
template <kv_view View>
void check_capacity(const View& view, const step& s) {
  view.each([&](const auto& seg) {
    for (int i = 0; i < s.size; ++i) check_item_capacity(seg, s.items[i], view.kv_heads());
  });
}

template <kv_segment Segment>
void check_strides(const Segment& seg) {
  expects(
      seg.planes.k_codes.record_stride >= seg.k.code_bytes() && seg.planes.v_codes.record_stride >= seg.v.code_bytes(),
      "records of ", seg.k.code_bytes(), " and ", seg.v.code_bytes(), " bytes at strides of ",
      seg.planes.k_codes.record_stride, " and ", seg.planes.v_codes.record_stride);
  expects(seg.planes.k_params.record_stride >= seg.k.param_bytes() &&
              seg.planes.v_params.record_stride >= seg.v.param_bytes(),
          "params of ", seg.k.param_bytes(), " and ", seg.v.param_bytes(), " bytes at strides of ",
          seg.planes.k_params.record_stride, " and ", seg.planes.v_params.record_stride);
}

template <kv_segment Segment>
void check_rows(const Segment& seg, const step_item& item, int head, position_range range) {
  const idx count = seg.retention.count(item.n, item.sequence, head);
  for (idx row = 0; row < count;) {
    const kept_row kept = seg.retention.at(item.n, item.sequence, head, row);
    const place p = seg.layout.locate(item.sequence, head, kept.slot);
    expects(kept.run >= 1 && p.run >= 1 && p.row >= 0, "sequence ", item.sequence, ", token ", kept.position,
            " is at row ", p.row, " of page ", p.page, " with runs of ", kept.run, " and ", p.run, " rows");
    const idx run = smaller(kept.run, p.run);
    const bool reached = kept.position < range.last && kept.position + run > range.first;
    expects(!reached || (p.page >= 0 && (seg.planes.pages == 0 || p.page < seg.planes.pages)), "sequence ",
            item.sequence, ", token ", kept.position, " (slot ", kept.slot, ") is on page ", p.page,
            "; the pool has pages 0 to ", seg.planes.pages - 1);
    row += run;
  }
}

/// Checked mode: every page, row and stride is valid of the rows whose positions are in `seen(item)`. Throws
/// `invalid_argument` with the offending one; does nothing otherwise, and nothing at all unless KVILT_CHECKED is 1.
template <kv_view View, class Seen>
void check_reachable(const View& view, const step& s, Seen&& seen) {
  if constexpr (KVILT_IS_CHECKED) {
    for (int i = 0; i < s.size; ++i) {
      const step_item& item = s.items[i];
      const position_range range = seen(item);
      expects(item.n.before >= 0 && item.n.before <= item.n.after, "sequence ", item.sequence, " goes from ",
              item.n.before, " to ", item.n.after, " tokens");
      view.each([&](const auto& seg) {
        check_strides(seg);
        for (int head = 0; head < view.kv_heads(); ++head) check_rows(seg, item, head, range);
      });
    }
  }
}

}  // namespace kvilt::inline KVILT_ABI::detail
