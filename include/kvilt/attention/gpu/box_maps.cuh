#pragma once

#include <kvilt/attention/gpu/group_bytes.cuh>
#include <kvilt/gpu/gpu.cuh>

#include <cuda.h>

/// \file
/// Maps by which a Hopper GPU copies boxes of rows on its own.

namespace kvilt::inline KVILT_ABI::detail {

/// Rows of a box: so many must follow each other in their page, and 64 numbers of each are copied at once.
inline constexpr int box_rows = 16;

/// Of the keys and values of each segment; `there` are those whose rows lie so that there can be one.
template <int Segments>
struct box_maps {
  CUtensorMap k[Segments], v[Segments];
  bool there[Segments];
};

/// The driver's function, or null where it has none: it is not linked, so that programs need no more than the runtime.
inline auto box_map_encoder() {
  using function = decltype(&cuTensorMapEncodeTiled);
  static const function encoder = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return status == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<function>(found) : nullptr;
  }();
  return encoder;
}

/// Maps a plane, where it can be: pages, heads and rows must be apart. NOTE: how many rows a page has, and pages there are,
/// only bounds what may be asked for: nothing but what is there is.
inline bool encode_boxes(decltype(&cuTensorMapEncodeTiled) encode, CUtensorMap& map, const plane& p, int dim,
                         int heads) {
  if (p.record_stride <= 0 || p.page_stride <= 0 || (p.head_stride <= 0 && heads > 1)) return false;
  const cuuint64_t dims[] = {cuuint64_t(dim), cuuint64_t(1) << 31, cuuint64_t(heads), cuuint64_t(1) << 31};
  const cuuint64_t strides[] = {cuuint64_t(p.record_stride), cuuint64_t(larger(p.head_stride, 16)),
                                cuuint64_t(p.page_stride)};
  const cuuint32_t box[] = {group_bytes::panel_numbers, box_rows, 1, 1}, steps[] = {1, 1, 1, 1};
  return encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, p.base, dims, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/// Can a segment's rows be copied so: are both keys and values 16-bit numbers as they lie?
template <class Segment>
consteval bool copied_in_boxes() {
  using wide = wide_tile<Segment>;
  return !device_tile<Segment>::decoded && !wide::widens_k && !wide::widens_v;
}

template <device_view View>
box_maps<View::segments> boxes_of(const View& view) {
  box_maps<View::segments> maps{};
  const auto encode = box_map_encoder();
  int i = 0;
  view.each([&](const auto& seg) {
    using segment_type = std::remove_cvref_t<decltype(seg)>;
    if constexpr (copied_in_boxes<segment_type>())
      maps.there[i] = encode && encode_boxes(encode, maps.k[i], seg.planes.k_codes, seg.k.dim(), view.kv_heads()) &&
                      encode_boxes(encode, maps.v[i], seg.planes.v_codes, seg.v.dim(), view.kv_heads());
    ++i;
  });
  return maps;
}

}  // namespace kvilt::inline KVILT_ABI::detail
