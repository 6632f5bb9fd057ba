#pragma once

#include <kvilt/cache/check.hpp>
#include <kvilt/cache/step.hpp>
#include <kvilt/cache/view.hpp>
#include <kvilt/core/floats.hpp>
#include <kvilt/core/types.hpp>

#include <cmath>

/// \file
/// What bounds logits: |scale q k| <= |scale| x the largest norm of Q x the largest norm of K (Cauchy and Schwarz).
/// RoPE and rotations leave norms as they are, but for RoPE's magnitude.

namespace kvilt::inline KVILT_ABI {
namespace detail {

/// The larger of two squared norms; NaN if either is.
inline double larger_square(double a, double b) {
  return b > a || is_nan(float(b)) ? b : a;
}
/// The root, rounded up.
inline float norm_of_square(double square) {
  return float(std::sqrt(square)) * (1 + 0x1p-22f);
}

}  // namespace detail

/// The largest Euclidean norm of rows [tokens][heads][dim], rounded up; 0 without rows. Throws `invalid_argument` where
/// there is no memory.
template <class T>
float largest_norm(idx tokens, rows<T> x) {
  detail::check_memory(x.data, tokens, "Q or K of ", tokens, " tokens");
  double largest = 0;
  for (idx t = 0; t < tokens; ++t)
    for (int head = 0; head < x.heads; ++head) {
      double square = 0;
      for (int i = 0; i < x.dim; ++i) square += double(load(x.at(t, head)[i])) * double(load(x.at(t, head)[i]));
      largest = detail::larger_square(largest, square);
    }
  return detail::norm_of_square(largest);
}

/// The largest Euclidean norm of the keys that a step's `append` has written, rounded up, as they decode from the cache:
/// quantised keys may be longer than they were. Those that left a 16-bit tail in the step are among them, so the largest
/// over all steps bounds every key in the cache. Throws `invalid_argument` as `append` does.
template <host_view View>
float largest_key_norm(const View& view, const step& s) {
  detail::check_step(s);
  detail::check_view(view);
  detail::check_capacity(view, s);
  double largest = 0;
  const auto look = [&](const auto& seg, const step_item& item, int head, idx position) {
    const idx slot = seg.retention.slot(item.n, item.sequence, head, position);
    if (slot < 0) return;
    const place p = seg.layout.locate(item.sequence, head, slot);
    if (p.page < 0) return;
    double square = 0;
    for (int first = 0; first < seg.k.dim(); first += 8) {
      float x[8];
      seg.k.template decode<8>(seg.k_row(p, head), first, x);
      for (const float value : x) square += double(value) * double(value);
    }
    largest = detail::larger_square(largest, square);
  };
  for (int i = 0; i < s.size; ++i) {
    const step_item& item = s.items[i];
    for (idx position = smaller(item.n.before, item.n.body_before); position < item.n.after; ++position)
      for (int head = 0; head < view.kv_heads(); ++head)
        view.each([&](const auto& seg) { look(seg, item, head, position); });
  }
  return detail::norm_of_square(largest);
}

}  // namespace kvilt::inline KVILT_ABI
