#pragma once

#include <kvilt/cache/step.hpp>
#include <kvilt/cache/view.hpp>

namespace kvilt::inline v0::detail {

/// Checked mode: every page, row and stride that a step can reach is valid. Throws `invalid_argument` with the
/// offending one; does nothing otherwise, and nothing at all unless KVILT_CHECKED is 1.
template <kv_view View>
void check_reachable(const View& view, const step& s) {
  if constexpr (KVILT_IS_CHECKED) {
    for (int i = 0; i < s.size; ++i) {
      const step_item& item = s.items[i];
      expects(item.n.before >= 0 && item.n.before <= item.n.after, "sequence ", item.sequence, " goes from ",
              item.n.before, " to ", item.n.after, " tokens");
      view.each([&](const auto& seg) {
        expects(seg.planes.k_codes.record_stride >= seg.k.code_bytes() &&
                    seg.planes.v_codes.record_stride >= seg.v.code_bytes(),
                "records of ", seg.k.code_bytes(), " and ", seg.v.code_bytes(), " bytes at strides of ",
                seg.planes.k_codes.record_stride, " and ", seg.planes.v_codes.record_stride);
        expects(seg.planes.k_params.record_stride >= seg.k.param_bytes() &&
                    seg.planes.v_params.record_stride >= seg.v.param_bytes(),
                "params of ", seg.k.param_bytes(), " and ", seg.v.param_bytes(), " bytes at strides of ",
                seg.planes.k_params.record_stride, " and ", seg.planes.v_params.record_stride);
        for (int head = 0; head < view.kv_heads(); ++head) {
          const idx count = seg.retention.count(item.n, item.sequence, head);
          for (idx row = 0; row < count;) {
            const kept_row kept = seg.retention.at(item.n, item.sequence, head, row);
            const place p = seg.layout.locate(item.sequence, head, kept.slot);
            expects(p.page >= 0 && (seg.planes.pages == 0 || p.page < seg.planes.pages), "sequence ", item.sequence,
                    ", token ", kept.position, " (slot ", kept.slot, ") is on page ", p.page,
                    "; the pool has pages 0 to ", seg.planes.pages - 1);
            expects(kept.run >= 1 && p.run >= 1 && p.row >= 0, "sequence ", item.sequence, ", token ", kept.position,
                    " is at row ", p.row, " of page ", p.page, " with runs of ", kept.run, " and ", p.run, " rows");
            row += smaller(kept.run, p.run);
          }
        }
      });
    }
  }
}

}  // namespace kvilt::inline v0::detail
