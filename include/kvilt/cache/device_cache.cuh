#pragma once

#include <kvilt/cache/cache.hpp>
#include <kvilt/cache/copy.cuh>
#include <kvilt/cache/plan.cuh>
#include <kvilt/gpu/staging.cuh>

#include <span>

/// \file
/// What a cache in device memory does on a stream.

namespace kvilt::inline KVILT_ABI::detail {

inline constexpr int upload_threads = 256;

/// Takes what is staged to where it belongs. A grid of any size. NOTE: a template, so that many sources may have it.
template <class Lists>
__global__ void __launch_bounds__(upload_threads) upload_kernel(const __grid_constant__ Lists lists) {
  const idx thread = idx(blockIdx.x) * upload_threads + threadIdx.x, threads = idx(gridDim.x) * upload_threads;
  static_assert(sizeof(step_item) % sizeof(uint4) == 0);
  const auto* const items_from = reinterpret_cast<const uint4*>(lists.items_from);
  auto* const items = reinterpret_cast<uint4*>(lists.items);
  const idx words = lists.size * idx(sizeof(step_item) / sizeof(uint4));
  for (idx i = thread; i < words; i += threads) items[i] = items_from[i];
  for (idx i = thread; i < lists.positions_count; i += threads) lists.positions[i] = lists.positions_from[i];
  for (idx i = thread / 32; i < lists.run_count; i += threads / 32) {
    const table_run run = lists.runs[i];
    for (int n = int(thread % 32); n < run.count; n += 32) lists.table[run.at + n] = lists.ids[run.first + n];
  }
}

template <>
struct device_side<gpu> {
  /// The cache's device is current, and what is sent is sent now.
  static void check(const gpu& exec, const void* data) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(exec.stream(), &capture), "whether a stream is being captured");
    expects(capture == cudaStreamCaptureStatusNone,
            "a cache's begin, fork or reorder is called while its stream is being captured; begin before the graph is "
            "launched, each time");
    if (data == nullptr) return;
    int current = 0;
    cudaPointerAttributes attributes{};
    check_cuda(cudaGetDevice(&current), "which device is current");
    check_cuda(cudaPointerGetAttributes(&attributes, data), "where a cache lies");
    expects(attributes.type != cudaMemoryTypeDevice || attributes.device == current, "a cache on device ",
            attributes.device, " is used while device ", current, " is current");
  }

  template <class View>
  static std::size_t workspace_bytes(const gpu& exec, const View& view, int sequences, int q_heads, int most_queries) {
    return kvilt::workspace_bytes(exec, view, sequences, q_heads, most_queries);
  }
  template <class View>
  static device_step place(const View& view, int size, int q_heads, int most_queries,
                           std::span<unsigned char> workspace, step_item*& items) {
    return place_device_step(view, size, q_heads, most_queries, workspace, items);
  }

  static unsigned char* stage(const gpu&, staging_handle& held, idx bytes, std::size_t least) {
    if (!held) held = staging_handle(new staging(least), {[](void* ring) { delete static_cast<staging*>(ring); }});
    return static_cast<staging*>(held.get())->take(std::size_t(bytes));
  }
  /// `blank_bytes`: of the table, to be -1 first.
  static void send(const gpu& exec, staging_handle& held, const upload& lists, std::size_t blank_bytes) {
    if (blank_bytes > 0) check_cuda(cudaMemsetAsync(lists.table, 0xff, blank_bytes, exec.stream()), "a new page table");
    const idx work = larger(lists.size * 4, larger(lists.positions_count, lists.run_count * 32));
    const idx grid = smaller(ceil_div(work, upload_threads), 128);
    launch(exec, upload_kernel<upload>, dim3(unsigned(grid)), dim3(upload_threads), 0, false, lists);
    static_cast<staging*>(held.get())->sent(exec);
  }
  template <class View>
  static void share(const gpu& exec, const View& view, const device_step& s) {
    share_work(exec, view, s);
  }
  template <class View>
  static void copy(const gpu& exec, const View& view, std::span<const sequence_copy> copies, int layers,
                   idx layer_bytes) {
    copy_sequences(exec, view, copies, layers, layer_bytes);
  }
  static void copy_pages(const gpu& exec, const storage& body, unsigned char* data, std::span<const copied_page> copies,
                         int layers, idx layer_bytes) {
    kvilt::detail::copy_pages(exec, body, data, copies, layers, layer_bytes);
  }
};

}  // namespace kvilt::inline KVILT_ABI::detail
