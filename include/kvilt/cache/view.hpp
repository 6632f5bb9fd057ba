#pragma once

#include <kvilt/cache/segment.hpp>

namespace kvilt::inline KVILT_ABI {

/// What the verbs get of a cache: 1 to 3 segments in token order, one softmax over all, and the number of KV heads.
/// Trivially copyable, owns nothing. All segments hold K in one rotation and V in one rotation, so that Q is rotated
/// once and the output once.
template <memory_space Space, kv_segment... Segments>
class view;

namespace detail {

template <class Retention>
consteval bool leaves_gaps() {
  if constexpr (requires { Retention::has_gaps; })
    return Retention::has_gaps;
  else
    return false;
}
/// Do positions go up by one from row to row, as in every interval?
template <class Retention>
consteval bool goes_by_ones() {
  return requires { Retention::slides; } && !leaves_gaps<Retention>();
}

template <class... Segments>
struct segment_list {
  KVILT_EITHER_SIDE
  template <class Body>
  KVILT_HD constexpr void each(Body&&) const {}
  template <class Change, class Make, class... Changed>
  constexpr auto changed(const Change&, const Make& make, const Changed&... all) const {
    return make(all...);
  }
};
// NOTE: a list of its own, since std::get is not callable on the device.
template <class First, class... Rest>
struct segment_list<First, Rest...> {
  First first;
  segment_list<Rest...> rest;

  constexpr segment_list() = default;
  KVILT_HD constexpr segment_list(const First& f, const Rest&... r) : first(f), rest(r...) {}

  KVILT_EITHER_SIDE
  template <class Body>
  KVILT_HD constexpr void each(Body&& body) const {
    body(first);
    rest.each(body);
  }
  /// make(change(segment)...), where `before` are those of the segments before these.
  template <class Change, class Make, class... Changed>
  constexpr auto changed(const Change& change, const Make& make, const Changed&... before) const {
    return rest.changed(change, make, before..., change(first));
  }
};

}  // namespace detail

template <memory_space Space, kv_segment First, kv_segment... Rest>
class view<Space, First, Rest...> {
  static_assert(sizeof...(Rest) < 3, "kvilt: a view has at most 3 segments (sinks, body, tail)");
  static_assert((std::is_same_v<rotation_of<typename First::k_format>, rotation_of<typename Rest::k_format>> && ...) &&
                    (std::is_same_v<rotation_of<typename First::v_format>, rotation_of<typename Rest::v_format>> &&
                     ...),
                "kvilt: all segments of a view must keep K in one rotation and V in one rotation");
  static_assert(((shares_keys<typename First::v_format> == shares_keys<typename Rest::v_format>)&&...),
                "kvilt: V lies in K's records in all segments of a view or in none");

 public:
  static constexpr memory_space space = Space;
  static constexpr int segments = 1 + sizeof...(Rest);
  /// Rows come in the order of their positions.
  static constexpr bool ordered = (First::retention_type::ordered && ... && Rest::retention_type::ordered);
  /// Rows that follow on each other may be far from each other in the text.
  static constexpr bool has_gaps = (detail::leaves_gaps<typename First::retention_type>() || ... ||
                                    detail::leaves_gaps<typename Rest::retention_type>());
  using k_rotation = rotation_of<typename First::k_format>;
  using v_rotation = rotation_of<typename First::v_format>;
  /// V is a part of K's records (`prefix`): nobody gives or writes it.
  static constexpr bool values_in_keys = shares_keys<typename First::v_format>;

  constexpr view() = default;
  constexpr explicit view(int kv_heads, const First& first, const Rest&... rest)
      : segments_(first, rest...), kv_heads_(kv_heads) {}

  KVILT_HD constexpr int kv_heads() const { return kv_heads_; }
  KVILT_HD constexpr int k_dim() const { return segments_.first.k.dim(); }
  KVILT_HD constexpr int v_dim() const { return segments_.first.v.dim(); }
  KVILT_HD constexpr const First& first() const { return segments_.first; }

  /// `body(segment)` for each segment, oldest tokens first.
  KVILT_EITHER_SIDE
  template <class Body>
  KVILT_HD constexpr void each(Body&& body) const {
    segments_.each(body);
  }

  /// The view of what `change` makes of each segment.
  template <class Change>
  constexpr auto changed(const Change& change) const {
    return segments_.changed(change, [this](const auto&... all) {
      return view<Space, std::remove_cvref_t<decltype(all)>...>(kv_heads_, all...);
    });
  }

 private:
  detail::segment_list<First, Rest...> segments_;
  int kv_heads_ = 0;
};

/// A view over memory of an engine's own: `make_view<memory_space::host>(8, segment...)`.
template <memory_space Space, kv_segment... Segments>
constexpr view<Space, Segments...> make_view(int kv_heads, const Segments&... segments) {
  return view<Space, Segments...>(kv_heads, segments...);
}

template <class V>
concept kv_view = std::is_trivially_copyable_v<V> && requires(const V v) {
  { V::space } -> std::convertible_to<memory_space>;
  { v.kv_heads() } -> std::same_as<int>;
  { v.k_dim() } -> std::same_as<int>;
  { v.v_dim() } -> std::same_as<int>;
};

/// A view that the verbs of the host may be given.
template <class V>
concept host_view = kv_view<V> && V::space == memory_space::host;

/// A view that the verbs of a GPU may be given.
template <class V>
concept device_view = kv_view<V> && V::space == memory_space::device;

}  // namespace kvilt::inline KVILT_ABI
