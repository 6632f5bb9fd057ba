#pragma once

#include <kvilt/cache/segment.hpp>
#include <kvilt/core/error.hpp>
#include <kvilt/format/static_scale.hpp>

#include <span>

namespace kvilt::inline KVILT_ABI {

/// The params of a format with static scales, for a view made by hand: one scale for the whole tensor, or one per KV
/// head. They are read for as long as the view is used, and never written.
inline plane scale_of_tensor(const float* scale) {
  return {reinterpret_cast<unsigned char*>(const_cast<float*>(scale)), 0, 0, 0};
}
inline plane scales_of_heads(const float* scales) {  // [kv_heads]
  return {reinterpret_cast<unsigned char*>(const_cast<float*>(scales)), 0, sizeof(float), 0};
}

namespace detail {

inline void check_static_scale(const char* which, int head, float scale) {
  expects(scale >= smallest_static_scale && scale <= largest_static_scale, which, "'s static scale of head ", head,
          " is ", scale, "; a positive, finite number is needed, from 2^-126 to 2^112");
}

/// Static scales that a view refers to. Null in any memory; numbers where the host can read them.
template <memory_space Space, kv_format F>
void check_static_scales(const char* which, const F&, const plane& params, int kv_heads) {
  if constexpr (has_static_scale<F>) {
    expects(params.base != nullptr, which, "'s static scale is null; there is no default");
    expects(params.page_stride == 0 && params.record_stride == 0, which, "'s static scales have a page stride of ",
            params.page_stride, " and a record stride of ", params.record_stride,
            "; they belong to a tensor or a head");
    if constexpr (Space == memory_space::host)
      for (int head = 0; head < kv_heads; ++head) check_static_scale(which, head, read<float>(params.at({}, head, 0)));
  }
}

/// The params of one layer from what an owner is given: `scales` has 1 number or kv_heads, and none where the format
/// writes its own. Null in any memory; numbers where the host can read them.
template <memory_space Space, kv_format F>
plane given_scales(const char* which, const F&, std::span<const float> scales, int kv_heads) {
  if constexpr (has_static_scale<F>) {
    expects(scales.size() == 1 || scales.size() == std::size_t(kv_heads), which, " is given ", scales.size(),
            " static scales; 1 or one for each of ", kv_heads, " KV heads is needed");
    expects(scales.data() != nullptr, which, "'s static scale is null; there is no default");
    if constexpr (Space == memory_space::host)
      for (std::size_t head = 0; head < scales.size(); ++head) check_static_scale(which, int(head), scales[head]);
    return scales.size() == 1 ? scale_of_tensor(scales.data()) : scales_of_heads(scales.data());
  } else {
    expects(scales.empty(), which, " is given ", scales.size(), " static scales; its format writes its own");
    return {};
  }
}

/// Params of one layer that are not the owner's.
struct layer_scales {
  plane k, v;
};

template <kv_format K, kv_format V>
geometry with_scales(geometry planes, const K&, const V&, const layer_scales& given) {
  if constexpr (has_static_scale<K>) planes.k_params = given.k;
  if constexpr (has_static_scale<V>) planes.v_params = given.v;
  return planes;
}

}  // namespace detail
}  // namespace kvilt::inline KVILT_ABI
