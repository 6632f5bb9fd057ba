#pragma once

#include <kvilt/cache/scales.hpp>
#include <kvilt/cache/step.hpp>
#include <kvilt/cache/view.hpp>

#include <type_traits>

namespace kvilt::inline KVILT_ABI::detail {

/// Rows that the format and the kernels can take.
template <kv_format F>
void check_format_dim(const char* which, const F& f) {
  if constexpr (requires { f.first(), f.second(); })
    check_format_dim(which, f.first()), check_format_dim(which, f.second());
  expects(f.dim() >= 8 && f.dim() % 8 == 0, which, " rows have ", f.dim(),
          " numbers; a positive multiple of 8 is needed");
  expects(f.dim() <= most_numbers, which, " rows have ", f.dim(), " numbers; up to ", most_numbers, " are supported");
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

/// Rows of a page; without end where the layout does not say.
template <kv_layout Layout>
idx page_rows_of(const Layout& layout) {
  if constexpr (requires { layout.page_size(); })
    return layout.page_size();
  else if constexpr (requires { layout.slots(); })
    return layout.slots();
  else
    return no_end;
}

/// Records of a plane do not lie on each other: an axis of one has any stride.
inline void check_plane(const char* which, const plane& p, idx bytes, idx rows, int heads, idx pages) {
  expects((rows < 2 || p.record_stride >= bytes) && (heads < 2 || p.head_stride >= bytes) &&
              (pages < 2 || p.page_stride >= bytes),
          which, " records of ", bytes, " bytes lie on each other at strides of ", p.record_stride, ", heads at ",
          p.head_stride, " and pages at ", p.page_stride);
}

/// A view that is written: where it is only read, as keys that all heads or a whole batch share, records may lie on
/// each other.
template <kv_view View>
void check_records(const View& view) {
  view.each([&](const auto& seg) {
    const geometry& g = seg.planes;
    const idx rows = page_rows_of(seg.layout);
    // NOTE: heads with pages of their own lie alike in them.
    const int heads = tabled_by_head<std::remove_cvref_t<decltype(seg.layout)>> ? 1 : view.kv_heads();
    check_plane("K's", g.k_codes, seg.k.code_bytes(), rows, heads, g.pages);
    check_plane("V's", g.v_codes, seg.v.code_bytes(), rows, heads, g.pages);
    check_plane("K's params'", g.k_params, seg.k.param_bytes(), rows, heads, g.pages);
    check_plane("V's params'", g.v_params, seg.v.param_bytes(), rows, heads, g.pages);
  });
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

/// What is behind a segment's pointers is there: looked at where a token is, since an empty cache has no bytes.
template <kv_segment Segment>
void check_bases(const Segment& seg) {
  check_memory(seg.planes.k_codes.base, seg.k.code_bytes(), "a view's memory of K");
  check_memory(seg.planes.v_codes.base, seg.v.code_bytes(), "a view's memory of V");
  check_memory(seg.planes.k_params.base, seg.k.param_bytes(), "a view's memory of K's params");
  check_memory(seg.planes.v_params.base, seg.v.param_bytes(), "a view's memory of V's params");
  if constexpr (requires { seg.layout.has_table(); })
    expects(seg.layout.has_table(), "the page table of a view is null");
}

/// Rows `row` to the end of its run lie within the layout's slots, and on a page that there is where pages come by
/// arithmetic; what a table says is the engine's affair.
template <kv_segment Segment>
void check_slots(const Segment& seg, const step_item& item, int head, idx row, idx count) {
  const kept_row kept = seg.retention.at(item.n, item.sequence, head, row);
  const idx last = kept.slot + smaller(kept.run, count - row) - 1, slots = slots_of(seg.layout, item.sequence);
  expects(kept.slot >= 0 && last < slots, "sequence ", item.sequence, " of ", item.n.after, " tokens needs slots ",
          kept.slot, " to ", last, "; its layout has ", slots);
  if constexpr (fixed_layout<typename Segment::layout_type>) {
    const idx page = seg.layout.locate(item.sequence, head, kept.slot).page;
    expects(page >= 0 && (seg.planes.pages == 0 || page < seg.planes.pages), "sequence ", item.sequence, " of ",
            item.n.after, " tokens is on page ", page, "; the pool has pages 0 to ", seg.planes.pages - 1);
  }
}

template <kv_segment Segment>
void check_item_capacity(const Segment& seg, const step_item& item, int kv_heads) {
  for (int head = 0; head < kv_heads; ++head) {
    const idx count = seg.retention.count(item.n, item.sequence, head);
    if (count == 0) continue;
    check_bases(seg);
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

/// Checked mode: every page and row is valid of the rows whose positions are in `seen(item)`. Throws
/// `invalid_argument` with the offending one; does nothing otherwise, and nothing at all unless KVILT_CHECKED is 1.
template <kv_view View, class Seen>
void check_reachable(const View& view, const step& s, Seen&& seen) {
  if constexpr (KVILT_IS_CHECKED) {
    for (int i = 0; i < s.size; ++i) {
      const step_item& item = s.items[i];
      const position_range range = seen(item);
      view.each([&](const auto& seg) {
        for (int head = 0; head < view.kv_heads(); ++head) check_rows(seg, item, head, range);
      });
    }
  }
}

}  // namespace kvilt::inline KVILT_ABI::detail
