#pragma once

#include <kvilt/cache/check.hpp>
#include <kvilt/cache/view.hpp>
#include <kvilt/core/given.hpp>
#include <kvilt/layout/contiguous.hpp>
#include <kvilt/layout/paged.hpp>
#include <kvilt/layout/paged_list.hpp>

/// \file
/// Views of one layer over the memory of other engines, as they lay it out: nothing is copied, and the engine's own
/// kernels see what is appended. Formats are those whose records are the engine's rows, without params: fp16, bf16,
/// fp32. `plan` says lengths and new tokens; a sequence's number is its row in the engine's table. Windows come as
/// variants (`causal_window`), since the engine keeps what it keeps.
///
/// Shapes are written outermost first, of memory, not of the tensors that engines make of it. All functions throw
/// `invalid_argument`, of what can be said without reading the engine's memory; the verbs refuse a sequence beyond the
/// pool where each has a page of its own, and tokens beyond a table's width.

namespace kvilt::inline KVILT_ABI {

/// The engine's pool, in numbers.
struct pool_shape {
  int pages = 0;  // or sequences, where each has one
  int page_rows = 0;
  int kv_heads = 0;
};

/// The engine's page table: ids [sequences][width]. Entries that no live token uses are never read.
struct page_table {
  const page_id* ids = nullptr;
  idx width = 0;
};

/// The order of a page's axes, tokens (N), heads (H) and numbers (D): in HND a head's tokens follow each other.
enum class page_axes : unsigned char { nhd, hnd };

namespace detail {

/// Where an engine keeps K, or V.
struct foreign_rows {
  void* base = nullptr;
  idx page = 0;  // bytes from one page to the next
  idx row = 0;   // bytes from one row to its neighbour
};

/// Bytes of a page whose rows have `row` bytes. NOTE: every size of a pool begins here, so that none is made of numbers
/// that were not looked at.
inline idx page_bytes(pool_shape s, idx row) {
  expects(s.pages >= 1 && s.page_rows >= 1 && s.kv_heads >= 1, "a pool of ", s.pages, " pages of ", s.page_rows,
          " rows of ", s.kv_heads, " heads; at least 1 of each is needed");
  const idx page = bytes_of(idx(s.page_rows) * s.kv_heads, row);
  expects(bytes_of(page, s.pages) < most_bytes, "a pool of ", s.pages, " pages of ", s.page_rows, " rows of ",
          s.kv_heads, " heads is beyond 2^56 bytes");
  return page;
}

/// Bytes of a row, of K or of V.
template <kv_format F>
idx row_bytes(const char* which, const F& f) {
  static_assert(F::rows == 1, "kvilt: other engines' memory takes token formats");
  check_format_dim(which, f);
  expects(f.param_bytes() == 0, which, " rows of ", name_of(f), " have ", f.param_bytes(),
          " bytes of params; an engine's pool has no place for them");
  return f.code_bytes();
}

/// Memory of the pool from byte `offset` on; what is null stays null, so that it is still seen.
inline void* at_byte(void* pool, idx offset) {
  return pool ? static_cast<unsigned char*>(pool) + offset : nullptr;
}

template <memory_space Space, class Layout, class K, class V>
auto foreign_view(const Layout& layout, pool_shape s, page_axes axes, const K& k_format, const V& v_format,
                  foreign_rows k, foreign_rows v) {
  check_memory(k.base && v.base ? k.base : nullptr, s.pages, "a pool of ", s.pages, " pages");
  const auto plane_of = [&](const foreign_rows& r) {
    auto* base = static_cast<unsigned char*>(r.base);
    if (axes == page_axes::nhd) return plane{base, r.page, r.row, s.kv_heads * r.row};
    return plane{base, r.page, s.page_rows * r.row, r.row};
  };
  using body = segment<Layout, interval<part::body, keep_all>, K, V>;
  const geometry planes{plane_of(k), {}, plane_of(v), {}, s.pages};
  return make_view<Space>(s.kv_heads, body{layout, interval<part::body, keep_all>(), k_format, v_format, planes});
}

/// K, or V, in a tensor of its own.
template <kv_format F>
foreign_rows own_tensor(const char* which, void* base, pool_shape s, const F& f) {
  const idx row = row_bytes(which, f);
  return {base, page_bytes(s, row), row};
}

/// K and V in turn, page by page: [pages][2][a page's rows], each page `stride` bytes after the one before.
template <memory_space Space, class Layout, class F>
auto paired_pages(const Layout& layout, pool_shape s, page_axes axes, const F& format, void* first, idx stride) {
  const idx row = row_bytes("K and V", format), half = page_bytes(s, row);
  if (stride == 0) stride = 2 * half;
  expects(stride >= 2 * half && bytes_of(stride, s.pages) < most_bytes, "pages of ", 2 * half, " bytes are ", stride,
          " bytes apart; as many bytes or more are needed, and ", s.pages, " pages below 2^56");
  return foreign_view<Space>(layout, s, axes, format, format, {first, stride, row},
                             {at_byte(first, half), stride, row});
}

inline paged<> pages_of(pool_shape s, page_table t) {
  expects(t.width >= 0 && t.width < idx(1) << 31, "a page table is ", t.width,
          " pages wide; 0 to 2^31 - 1 are supported");
  check_memory(t.ids, t.width, "a page table of ", t.width, " pages a sequence");
  return paged<>(s.page_rows, t.ids, t.width);
}

/// NOTE: a batch without a token has empty lists, which may be null; others are looked at where a token is.
inline paged_list pages_of(pool_shape s, const page_id* indices, const int* indptr) {
  return {indices, indptr, fast_divisor(s.page_rows)};
}

}  // namespace detail

/// vLLM, K and V stacked: [2][pages][page_rows][kv_heads][dim], or [2][pages][kv_heads][page_rows][dim].
/// Its FlashAttention backend of 2025 (v1/attention/backends/flash_attn.py, 0.9 to 0.15).
template <memory_space Space = memory_space::host, kv_format F>
auto wrap_vllm_stacked(void* pool, const F& format, pool_shape s, page_table table, page_axes axes = page_axes::nhd) {
  const detail::foreign_rows k = detail::own_tensor("K and V", pool, s, format);
  void* const v = detail::at_byte(pool, s.pages * k.page);
  return detail::foreign_view<Space>(detail::pages_of(s, table), s, axes, format, format, k, {v, k.page, k.row});
}

/// vLLM, K and V in each page: [pages][2][page_rows][kv_heads][dim], or [pages][2][kv_heads][page_rows][dim].
/// Its FlashInfer backend from 0.9 on, and its others in 0.24. `page_stride`: bytes from one page to the next, where
/// they are padded or hold several layers; 0: they lie side by side.
template <memory_space Space = memory_space::host, kv_format F>
auto wrap_vllm_paired(void* pool, const F& format, pool_shape s, page_table table, page_axes axes = page_axes::nhd,
                      idx page_stride = 0) {
  return detail::paired_pages<Space>(detail::pages_of(s, table), s, axes, format, pool, page_stride);
}

/// vLLM, K and V of a token and head side by side: [pages][page_rows][kv_heads][k_dim + v_dim], or
/// [pages][kv_heads][page_rows][k_dim + v_dim]. Its backends in 0.28, and from 0.14 on where K and V differ in dim.
template <memory_space Space = memory_space::host, kv_format K, kv_format V>
auto wrap_vllm_joined(void* pool, const K& k_format, const V& v_format, pool_shape s, page_table table,
                      page_axes axes = page_axes::nhd) {
  const idx k = detail::row_bytes("K", k_format), row = k + detail::row_bytes("V", v_format);
  const idx page = detail::page_bytes(s, row);
  return detail::foreign_view<Space>(detail::pages_of(s, table), s, axes, k_format, v_format, {pool, page, row},
                                     {detail::at_byte(pool, k), page, row});
}

/// FlashInfer, K and V in one tensor: memory as `wrap_vllm_paired` takes it, and each sequence's pages in a list.
/// `indices`, `indptr`: its kv_indices and kv_indptr; lengths stand for its last_page_len (docs.flashinfer.ai, 0.6).
template <memory_space Space = memory_space::host, kv_format F>
auto wrap_flashinfer(void* pool, const F& format, pool_shape s, const page_id* indices, const int* indptr,
                     page_axes axes = page_axes::nhd) {
  return detail::paired_pages<Space>(detail::pages_of(s, indices, indptr), s, axes, format, pool, 0);
}
/// The same with a tensor for each: [pages][page_rows][kv_heads][dim], or [pages][kv_heads][page_rows][dim].
template <memory_space Space = memory_space::host, kv_format K, kv_format V>
auto wrap_flashinfer(void* k_pool, void* v_pool, const K& k_format, const V& v_format, pool_shape s,
                     const page_id* indices, const int* indptr, page_axes axes = page_axes::nhd) {
  return detail::foreign_view<Space>(detail::pages_of(s, indices, indptr), s, axes, k_format, v_format,
                                     detail::own_tensor("K", k_pool, s, k_format),
                                     detail::own_tensor("V", v_pool, s, v_format));
}

/// FlashAttention's paged cache: K [pages][page_rows][kv_heads][k_dim], V alike with v_dim, and its block_table
/// (flash_attn_with_kvcache; versions 2 and 3, of which 2 wants page_rows to be a multiple of 256).
template <memory_space Space = memory_space::host, kv_format K, kv_format V>
auto wrap_flash_attention(void* k_cache, void* v_cache, const K& k_format, const V& v_format, pool_shape s,
                          page_table block_table) {
  return detail::foreign_view<Space>(detail::pages_of(s, block_table), s, page_axes::nhd, k_format, v_format,
                                     detail::own_tensor("K", k_cache, s, k_format),
                                     detail::own_tensor("V", v_cache, s, v_format));
}
/// Its cache without a table: K and V [batch_size_cache][seqlen_cache][kv_heads][dim]. `s.pages` is the first,
/// `s.page_rows` the second; a sequence's number is its cache_batch_idx.
template <memory_space Space = memory_space::host, kv_format K, kv_format V>
auto wrap_flash_attention(void* k_cache, void* v_cache, const K& k_format, const V& v_format, pool_shape s) {
  return detail::foreign_view<Space>(contiguous{s.page_rows}, s, page_axes::nhd, k_format, v_format,
                                     detail::own_tensor("K", k_cache, s, k_format),
                                     detail::own_tensor("V", v_cache, s, v_format));
}

/// TensorRT-LLM's primary pool, all layers of a block side by side: [pages][layers][2][kv_heads][page_rows][dim]
/// (batch_manager/kvCacheManager.cpp and kernels/kvCacheUtils.h of 2024 to 2026). `blocks` has block indices of this
/// pool; the engine's own offsets are, for K, index x layers x 2. What lies in its secondary pool must be onboarded.
template <memory_space Space = memory_space::host, kv_format F>
auto wrap_tensorrt_llm(void* pool, const F& format, pool_shape s, page_table blocks, int layers, int layer) {
  detail::expects(layer >= 0 && layer < layers, "layer ", layer, "; the pool has layers 0 to ", layers - 1);
  const idx both = 2 * detail::page_bytes(s, detail::row_bytes("K and V", format));
  const idx stride = detail::bytes_of(layers, both);
  void* const first = detail::at_byte(pool, detail::bytes_of(layer, both));
  return detail::paired_pages<Space>(detail::pages_of(s, blocks), s, page_axes::hnd, format, first, stride);
}

/// llama.cpp with a stream for each sequence: K and V [streams][cells][kv_heads x dim], a tensor each (cache_k_l0 …,
/// src/llama-kv-cache.cpp of 2025). `s.pages` is streams, `s.page_rows` cells; token i lies in cell i, as it does until
/// cells in the middle are freed. V must be as it is with flash attention: without, it is transposed, [dim][cells],
/// which no format of rows reads.
template <memory_space Space = memory_space::host, kv_format K, kv_format V>
auto wrap_llama_cpp(void* k_cache, void* v_cache, const K& k_format, const V& v_format, pool_shape s) {
  return wrap_flash_attention<Space>(k_cache, v_cache, k_format, v_format, s);
}
/// The same with one stream that all sequences share: `cells` says in which cell each sequence's tokens lie. `s.pages`
/// is cells, `s.page_rows` 1.
template <memory_space Space = memory_space::host, kv_format K, kv_format V>
auto wrap_llama_cpp(void* k_cache, void* v_cache, const K& k_format, const V& v_format, pool_shape s,
                    page_table cells) {
  detail::expects(s.page_rows == 1, "a cell of ", s.page_rows, " rows; a cell has 1");
  return wrap_flash_attention<Space>(k_cache, v_cache, k_format, v_format, s, cells);
}

}  // namespace kvilt::inline KVILT_ABI
