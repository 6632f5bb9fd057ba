#pragma once

#include <kvilt/cache/budget.hpp>
#include <kvilt/cache/reorder.hpp>
#include <kvilt/cache/segment.hpp>
#include <kvilt/core/math.hpp>
#include <kvilt/format/static_scale.hpp>
#include <kvilt/gpu/gpu.cuh>

#include <cstdint>
#include <span>

namespace kvilt::inline KVILT_ABI::detail {

/// Copies of one launch.
struct copy_list {
  static constexpr int most = 48;
  sequence_copy copies[most];
  int size = 0;
};

/// One block's part: rows [first, last) of one head in one segment, `shift` bytes behind the first layer's.
struct copy_piece {
  static constexpr int threads = 256;
  static constexpr int rows = 128;

  sequence_copy copy;
  int head = 0;
  idx shift = 0;
  idx first = 0, last = 0;

  /// K's codes or params, or V's: records of `Rows` rows and `bytes` bytes. NOTE: threads go along records first, so that
  /// where these lie side by side so do a warp's words.
  template <int Rows, class Segment>
  __device__ void plane_of(const Segment& seg, const plane& p, idx bytes) const {
    if (bytes == 0) return;
    const int word = word_bytes(idx(reinterpret_cast<std::uintptr_t>(p.base)) | p.page_stride | p.head_stride |
                                p.record_stride | shift | bytes);
    const int words = int(bytes) / word;
#pragma unroll 1
    for (int i = int(threadIdx.x); i < int(last - first) * words; i += threads) {
      const idx row = first + i / words;
      const idx slot = seg.retention.at(copy.n, copy.from, head, row).slot;
      const place at = seg.layout.locate(copy.from, head, slot), as = seg.layout.locate(copy.to, head, slot);
      if (at.page < 0 || as.page < 0) continue;
      if (Rows > 1 && at.row % Rows != 0 && row > 0) continue;  // goes with its record's first row
      const idx offset = shift + i % words * word;
      move(p.at(at, head, at.row / Rows) + offset, p.at(as, head, as.row / Rows) + offset, word);
    }
  }

 private:
  /// The longest word whose multiples all of these are.
  __device__ static int word_bytes(idx bits) {
    return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : bits % 2 == 0 ? 2 : 1;
  }
  __device__ static void move(const unsigned char* from, unsigned char* to, int word) {
    if (word == 16)
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    else if (word == 4)
      *reinterpret_cast<unsigned*>(to) = *reinterpret_cast<const unsigned*>(from);
    else if (word == 2)
      *reinterpret_cast<unsigned short*>(to) = *reinterpret_cast<const unsigned short*>(from);
    else
      *to = *from;
  }
};

/// A static scale belongs to a tensor or a head: it is where it should be already.
template <kv_format F>
KVILT_HD constexpr idx copied_param_bytes(const F& f) {
  return has_static_scale<F> ? 0 : f.param_bytes();
}

/// Whether each sequence has a place of its own in a segment: pages are copied whole, if at all.
template <class Segment>
inline constexpr bool has_places = fixed_layout<typename Segment::layout_type>;

/// Every row that a copy's lengths name, byte for byte, in parts that have places, in all layers: layer l's rows lie
/// `l * layer_bytes` behind those of the view. grid: (pieces of the longest part, layers x heads at most, copies).
template <class View>
__global__ void __launch_bounds__(copy_piece::threads, 4)
    copy_sequences_kernel(const __grid_constant__ View view, const __grid_constant__ copy_list list, int layers,
                          idx layer_bytes) {
  copy_piece piece{list.copies[blockIdx.z]};
  for (int part = int(blockIdx.y); part < layers * view.kv_heads(); part += int(gridDim.y)) {
    piece.head = part % view.kv_heads();
    piece.shift = part / view.kv_heads() * layer_bytes;
    view.each([&](const auto& seg) {
      using segment_type = std::remove_cvref_t<decltype(seg)>;
      if constexpr (!has_places<segment_type>) return;
      constexpr int k_rows = segment_type::k_format::rows, v_rows = segment_type::v_format::rows;
      const idx count = seg.retention.count(piece.copy.n, piece.copy.from, piece.head);
      piece.first = idx(blockIdx.x) * copy_piece::rows;
      piece.last = smaller(piece.first + copy_piece::rows, count);
      if (piece.first >= piece.last) return;
      piece.plane_of<k_rows>(seg, seg.planes.k_codes, seg.k.code_bytes());
      piece.plane_of<k_rows>(seg, seg.planes.k_params, copied_param_bytes(seg.k));
      if constexpr (shares_keys<typename segment_type::v_format>) return;
      piece.plane_of<v_rows>(seg, seg.planes.v_codes, seg.v.code_bytes());
      piece.plane_of<v_rows>(seg, seg.planes.v_params, copied_param_bytes(seg.v));
    });
  }
}

/// Rows of the longest part that one of the copies has.
template <class View>
idx longest_part(const View& view, const copy_list& list) {
  idx most = 0;
  view.each([&](const auto& seg) {
    for (int i = 0; has_places<std::remove_cvref_t<decltype(seg)>> && i < list.size; ++i)
      most = larger(most, seg.retention.count(list.copies[i].n, list.copies[i].from, 0));
  });
  return most;
}

/// Copies rows of sequences of one cache; `view` is its first layer's. No copy reads what another writes.
template <class View>
void copy_sequences(const gpu& exec, const View& view, std::span<const sequence_copy> copies, int layers,
                    idx layer_bytes) {
  const idx parts = smaller(idx(layers) * view.kv_heads(), 65535);
  for (std::size_t first = 0; first < copies.size(); first += copy_list::most) {
    copy_list list;
    while (list.size < copy_list::most && first + std::size_t(list.size) < copies.size()) {
      list.copies[list.size] = copies[first + std::size_t(list.size)];
      ++list.size;
    }
    const idx pieces = ceil_div(longest_part(view, list), copy_piece::rows);
    launch(exec, copy_sequences_kernel<View>, dim3(unsigned(pieces), unsigned(parts), unsigned(list.size)),
           dim3(copy_piece::threads), 0, false, view, list, layers, layer_bytes);
  }
}

/// Pages of one launch, and where a page's codes and params lie in a layer.
struct copied_page_list {
  static constexpr int most = 256;
  copied_page copies[most];
  int size = 0;
  unsigned char* data = nullptr;  // of the first layer
  idx codes_page = 0, params_at = 0, params_page = 0;
};

template <class Word>
__device__ void copy_words(const unsigned char* from, unsigned char* to, idx bytes) {
  const idx first = idx(blockIdx.x) * copy_piece::threads + threadIdx.x, step = idx(gridDim.x) * copy_piece::threads;
  for (idx i = first; i < bytes / idx(sizeof(Word)); i += step)
    reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
}

/// All bytes of pages, in all layers. grid: (pieces of a page, layers at most, copies). NOTE: `storage` has codes of a
/// page in whole words of 16 bytes, and params in words of 4. A template, so that many sources may have it.
template <class List>
__global__ void __launch_bounds__(copy_piece::threads)
    copy_pages_kernel(const __grid_constant__ List list, int layers, idx layer_bytes) {
  const copied_page c = list.copies[blockIdx.z];
  for (int layer = int(blockIdx.y); layer < layers; layer += int(gridDim.y)) {
    unsigned char* const codes = list.data + layer * layer_bytes;
    copy_words<uint4>(codes + c.from * list.codes_page, codes + c.to * list.codes_page, list.codes_page);
    unsigned char* const params = codes + list.params_at;
    copy_words<unsigned>(params + c.from * list.params_page, params + c.to * list.params_page, list.params_page);
  }
}

/// No copy reads or writes what another writes. data: of the first layer.
inline void copy_pages(const gpu& exec, const storage& body, unsigned char* data, std::span<const copied_page> copies,
                       int layers, idx layer_bytes) {
  const idx pieces = smaller(ceil_div(body.codes_page, copy_piece::threads * 16), 64);
  for (std::size_t first = 0; first < copies.size(); first += copied_page_list::most) {
    copied_page_list list;
    list.data = data;
    list.codes_page = body.codes_page, list.params_at = body.codes_bytes(), list.params_page = body.params_page;
    for (const copied_page& c : copies.subspan(first, std::size_t(smaller(idx(copies.size() - first), list.most))))
      list.copies[list.size++] = c;
    launch(exec, copy_pages_kernel<copied_page_list>,
           dim3(unsigned(pieces), unsigned(smaller(layers, 65535)), unsigned(list.size)), dim3(copy_piece::threads), 0,
           false, list, layers, layer_bytes);
  }
}

}  // namespace kvilt::inline KVILT_ABI::detail
