#pragma once

#include <kvilt/attention/attend.hpp>
#include <kvilt/attention/gpu/kernels.cuh>
#include <kvilt/cache/plan.cuh>

namespace kvilt::inline KVILT_ABI {
namespace detail {

/// Kernels copy 16 bytes at a time.
inline void check_alignment(const char* what, const plane& p, int bytes) {
  const auto base = reinterpret_cast<std::uintptr_t>(p.base);
  expects(base % std::uintptr_t(bytes) == 0 && p.page_stride % bytes == 0 && p.head_stride % bytes == 0 &&
              p.record_stride % bytes == 0,
          what, " begin at byte ", base % 256, " of a line, and pages are ", p.page_stride, ", heads ", p.head_stride,
          " and records ", p.record_stride, " bytes apart; multiples of ", bytes, " are needed");
}
template <kv_format F>
void check_planes(const char* which, const F&, const plane& codes, const plane& params) {
  if constexpr (multiplied_as_codes<F>()) {
    check_alignment(which, codes, 16);
    if constexpr (F::plain.params == param_kind::scale16) check_alignment("scales", params, 2);
    if constexpr (F::plain.params == param_kind::scale_zero || F::plain.params == param_kind::scale32)
      check_alignment("scales and zeros", params, 4);
  }
}

template <class View, class Q>
void check_queries(const View& view, const device_step& s, const rows<Q>& q) {
  check_view(view);
  expects(q.dim == view.k_dim(), "rows of Q have ", q.dim, " numbers; the cache's keys have ", view.k_dim());
  check_memory(q.data, s.q_rows, "Q of ", s.q_rows, " rows");
  expects(q.heads == s.q_heads, "Q has ", q.heads, " heads; the step is planned for ", s.q_heads);
  expects(s.work.shape.kv_heads == view.kv_heads(), "the step is planned for ", s.work.shape.kv_heads,
          " KV heads; the view has ", view.kv_heads());
}
template <class View>
void check_segments(const View& view) {
  view.each([&](const auto& seg) {
    check_planes("keys", seg.k, seg.planes.k_codes, seg.planes.k_params);
    check_planes("values", seg.v, seg.planes.v_codes, seg.planes.v_params);
  });
}
/// The step is planned as for this view.
template <class View>
void check_plan(const View& view, const device_step& s) {
  const work_shape shape = shape_of_work(view, device_limits::current(), s.q_heads, s.most_queries);
  const work_shape& planned = s.work.shape;
  expects(shape.rows == planned.rows && shape.heads == planned.heads && shape.warps == planned.warps &&
              shape.blocks == planned.blocks && shape.longest == planned.longest,
          "the step is planned for ", planned.blocks, " blocks of ", planned.warps, " warps, by ", planned.heads,
          " heads and ", planned.rows, " rows, and for items of up to ", planned.longest,
          " queries; for this view on this device they would be ", shape.blocks, ", ", shape.warps, ", ", shape.heads,
          ", ", shape.rows, " and ", shape.longest);
}
template <class View, class Q, class Out>
void check_attention(const View& view, const device_step& s, const rows<Q>& q, const rows<Out>& out, natural_lse lse) {
  check_queries(view, s, q);
  expects(out.heads == q.heads && out.dim == view.v_dim(), "the output has ", out.heads, " heads of ", out.dim,
          " numbers; Q has ", q.heads, " and the cache's values ", view.v_dim());
  check_memory(out.data, s.q_rows, "the output of ", s.q_rows, " rows");
  check_written("rows of the output", out, s.q_rows);
  if (lse) check_written(lse, s.q_rows, q.heads);
  const idx need = pieces_bytes(s.work.shape, view.v_dim());
  expects(s.scratch != nullptr && idx(s.scratch_bytes) >= need, "the step's workspace leaves ", s.scratch_bytes,
          " bytes for partial results of ", view.v_dim(), " numbers; ", need, " are needed: see workspace_bytes");
  check_plan(view, s);
  check_segments(view);
}
/// RoPE and the scale of scores.
template <class Variant, class Positions, class View>
void check_scores(const attention<Variant, Positions>& a, const View& view) {
  if constexpr (requires { a.positions().turn; }) check_rope(a.positions().turn, view.k_dim());
  expects(std::isfinite(a.scale(view.k_dim())), "scores are scaled by ", a.scale(view.k_dim()),
          "; a finite number is needed");
}

template <int DimStep, int Groups, class Task>
void launch_groups(const gpu& exec, const Task& task) {
  using attention = warp_attention<Task, DimStep, Groups>;
  const work_shape& shape = task.work.shape;
  launch(exec, attend_kernel<Task, DimStep, Groups>, dim3(unsigned(shape.blocks)), dim3(unsigned(32 * shape.warps)),
         std::size_t(shape.warps * attention::memory_bytes()), true, task);
}

template <int DimStep, class Task>
void launch_attention(const gpu& exec, const Task& task) {
  constexpr int most = most_groups<Task, DimStep>();
  const int groups = task.work.shape.rows / 8 < most ? task.work.shape.rows / 8 : most;
  if constexpr (most >= 4)
    if (groups == 4) return launch_groups<DimStep, 4>(exec, task);
  if constexpr (most >= 2)
    if (groups == 2) return launch_groups<DimStep, 2>(exec, task);
  launch_groups<DimStep, 1>(exec, task);
}

/// A block for each of an item's stretches of query rows, as many as there may be; of warpgroups, as many as the device has
/// room for.
template <int DimStep, class Task>
void launch_prefill(const gpu& exec, const Task& task) {
  using view_type = typename Task::view_type;
  constexpr block_bytes blocks = block_bytes::of<view_type>(DimStep);
  constexpr group_bytes groups = group_bytes::of<view_type>(DimStep);
  const auto kernel = prefill_kernel<Task, DimStep>;
  cudaFuncAttributes compiled{};
  check_cuda(cudaFuncGetAttributes(&compiled, reinterpret_cast<const void*>(kernel)), "attributes of a kernel");
  const work_shape& shape = task.work.shape;
  const idx rows = idx(task.most_queries) * shape.group.value();
  if (compiled.maxThreadsPerBlock == groups.threads) {
    const idx stretches = ceil_div(rows, idx(groups.rows)) * shape.kv_heads * task.size;
    launch(exec, kernel, dim3(unsigned(smaller(stretches, shape.blocks))), dim3(groups.threads),
           std::size_t(groups.total()), true, task, boxes_of(task.view));
  } else {
    launch(exec, kernel,
           dim3(unsigned(ceil_div(rows, idx(blocks.rows()))), unsigned(shape.kv_heads),
                unsigned(smaller(task.size, 65535))),
           dim3(blocks.threads), std::size_t(blocks.total()), true, task, box_maps<view_type::segments>{});
  }
}

/// `body(step)`, a constant, for the step that the view's rows fit; 0 where dims are known when compiled.
template <class View, class Body>
void for_dim_step(const View& view, Body&& body) {
  if constexpr (fixed_dims(static_cast<const View*>(nullptr))) {
    body(std::integral_constant<int, 0>());
  } else {
    const int step = dim_step(view);
    if (step == dim_steps[0])
      body(std::integral_constant<int, dim_steps[0]>());
    else if (step == dim_steps[1])
      body(std::integral_constant<int, dim_steps[1]>());
    else
      body(std::integral_constant<int, dim_steps[2]>());
  }
}

}  // namespace detail

/// Attention on a GPU: two kernels, and one more where sequences may have so many query rows that blocks take them (whole
/// prompts; of those Q is rounded to the 16-bit numbers that keys are multiplied as, and weights to those of the values);
/// nothing waited for. Bits are the same from run to run; they depend on how the step's work is shared out, so on its
/// neighbours.
template <class Variant, class Positions, device_view View, class Q, class Out>
void run_attention(const gpu& exec, const attention<Variant, Positions>& a, const View& view, const device_step& s,
                   rows<Q> q, rows<Out> out, natural_lse lse) {
  static_assert(!std::is_same_v<Positions, rope_on_read>, "kvilt: RoPE on read has no kernel on the GPU");
  if (s.q_rows > 0) detail::check_hooks(a.variant());
  detail::check_attention(view, s, q, out, lse);
  detail::check_scores(a, view);
  if (s.size == 0 || s.q_rows == 0) return;
  using query = std::remove_const_t<Q>;
  const detail::device_attention<View, Variant, Positions, query, Out> task{
      view,
      a.variant(),
      a.positions(),
      a.scale(view.k_dim()),
      {q.data, q.token_stride, q.head_stride, q.heads, q.dim},
      out,
      lse,
      s.items,
      s.size,
      s.most_queries,
      s.work,
      reinterpret_cast<float*>(s.scratch),
      exec.reads_early()};
  detail::for_dim_step(view, [&](auto step) {
    if constexpr (detail::taken_by_blocks<View>())
      if (s.most_queries > 0 && !s.work.shape.has(s.most_queries)) detail::launch_prefill<step.value>(exec, task);
    detail::launch_attention<step.value>(exec, task);
  });
  detail::launch(exec, detail::merge_kernel<std::remove_const_t<decltype(task)>>, dim3(unsigned(s.work.shape.blocks)),
                 dim3(32 * detail::merge_warps), 0, true, task);
}

}  // namespace kvilt::inline KVILT_ABI
