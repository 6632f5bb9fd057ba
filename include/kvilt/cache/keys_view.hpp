#pragma once

#include <kvilt/cache/view.hpp>

/// \file
/// A view for who reads keys alone.

namespace kvilt::inline KVILT_ABI::detail {

/// Values of format `V`, which nobody reads: they have its dim and no bytes.
template <kv_format V>
struct unread : extent<static_dim<V>()> {
  using format = V;
  static constexpr int rows = V::rows;

  constexpr unread() = default;
  constexpr explicit unread(const V& v) : extent<static_dim<V>()>(v.dim()) {}

  KVILT_HD constexpr int dim() const { return this->get(); }
  KVILT_HD static constexpr int code_bytes() { return 0; }
  KVILT_HD static constexpr int param_bytes() { return 0; }
  KVILT_HD static void encode(const float*, row_ref) {}
  template <int N>
  KVILT_HD static void decode(row_ref, int, float (&)[N]) {}
};

template <class F>
inline constexpr bool is_unread = false;
template <class V>
inline constexpr bool is_unread<unread<V>> = true;

/// The same rows without their values.
template <kv_segment S>
using keys_segment =
    segment<typename S::layout_type, typename S::retention_type, typename S::k_format, unread<typename S::v_format>>;

template <kv_view View>
struct keys_view_of;
template <memory_space Space, class... Segments>
struct keys_view_of<view<Space, Segments...>> {
  using type = view<Space, keys_segment<Segments>...>;
};
template <kv_view View>
using keys_view = typename keys_view_of<View>::type;

/// The view's keys.
template <kv_view View>
keys_view<View> keys_of(const View& view) {
  return view.changed([]<class S>(const S& seg) {
    return keys_segment<S>{seg.layout, seg.retention, seg.k, unread(seg.v), seg.planes};
  });
}

}  // namespace kvilt::inline KVILT_ABI::detail
