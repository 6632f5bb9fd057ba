#pragma once

#include <kvilt/cache/retention.hpp>
#include <kvilt/format/format.hpp>
#include <kvilt/layout/layout.hpp>

namespace kvilt::inline KVILT_ABI {

/// One of K codes, K params, V codes, V params: a base and strides in bytes, taken from the allocation, never rebuilt
/// from shapes.
struct plane {
  unsigned char* base = nullptr;
  idx page_stride = 0;
  idx head_stride = 0;
  idx record_stride = 0;

  KVILT_HD constexpr unsigned char* at(place p, int head, int record) const {
    return base + p.page * page_stride + head * head_stride + record * record_stride;
  }
  friend constexpr bool operator==(const plane&, const plane&) = default;
};

/// The planes of a segment.
struct geometry {
  plane k_codes, k_params;
  plane v_codes, v_params;
  idx pages = 0;  // behind the bases, for checked mode; 0: not known
};

namespace detail {

template <class K, class V>
consteval bool values_fit() {
  if constexpr (shares_keys<V>)
    return std::is_same_v<typename V::keys, K> && std::is_same_v<rotation_of<V>, no_rotation>;
  else
    return true;
}

}  // namespace detail

/// What one inner loop runs over: rows in one layout under one retention in one pair of formats.
/// Trivially copyable, owns nothing; made by `cache::view`, or by hand over an engine's own memory.
template <kv_layout Layout, kv_retention Retention, kv_format K, kv_format V = K>
struct segment {
  static_assert(detail::values_fit<K, V>(),
                "kvilt: a prefix is V's format beside the K format that it names, not rotated");

  using layout_type = Layout;
  using retention_type = Retention;
  using k_format = K;
  using v_format = V;

  Layout layout;
  Retention retention;
  K k;
  V v;
  geometry planes;

  KVILT_HD constexpr row_ref k_row(place p, int head) const {
    return {planes.k_codes.at(p, head, p.row / K::rows), planes.k_params.at(p, head, p.row / K::rows), p.row % K::rows};
  }
  KVILT_HD constexpr row_ref v_row(place p, int head) const {
    return {planes.v_codes.at(p, head, p.row / V::rows), planes.v_params.at(p, head, p.row / V::rows), p.row % V::rows};
  }
};

template <class S>
concept kv_segment = std::is_trivially_copyable_v<S> && kv_layout<typename S::layout_type> &&
    kv_retention<typename S::retention_type> && kv_format<typename S::k_format> && kv_format<typename S::v_format> &&
    requires(const S s, place p, int head) {
  { s.k_row(p, head) } -> std::same_as<row_ref>;
  { s.v_row(p, head) } -> std::same_as<row_ref>;
};

}  // namespace kvilt::inline KVILT_ABI
