#pragma once

#include <kvilt/attention/attend.cuh>
#include <kvilt/attention/column_mass.hpp>
#include <kvilt/attention/gpu/warp_mass.cuh>

namespace kvilt::inline KVILT_ABI {
namespace detail {

/// What is known on the host of what column sums are asked of.
template <class View, class Q>
void check_columns(const View& view, const device_step& s, const rows<Q>& q, natural_lse lse, const rows<float>& mass) {
  check_queries(view, s, q);
  check_written(lse, s.q_rows, q.heads);
  expects(mass.heads == view.kv_heads(), "column sums are of ", mass.heads, " heads; the cache has ", view.kv_heads());
  expects(mass.dim >= 0, "there is room for ", mass.dim, " column sums; that may not be negative");
  const idx sequences = s.q_rows > 0 ? s.size : 0;
  check_memory(mass.data, sequences, "the column sums of ", sequences, " sequences");
  check_written("column sums", mass, sequences);
  check_plan(view, s);
  view.each([](const auto& seg) { check_planes("keys", seg.k, seg.planes.k_codes, seg.planes.k_params); });
}

/// A plan of the step in its scratch, whose units are all rows of a sequence, however many.
template <class View>
work_plan plan_columns(const gpu& exec, const View& view, const device_step& s) {
  work_shape shape = s.work.shape;
  shape.rows = 1 << 30;
  shape.longest = std::numeric_limits<int>::max();
  const step_places at(s.size, shape, 0);
  expects(s.scratch != nullptr && idx(s.scratch_bytes) >= at.pieces, "the step's workspace leaves ", s.scratch_bytes,
          " bytes for the work of column sums; ", at.pieces, " are needed: see workspace_bytes");
  const work_plan plan = at.plan(s.scratch, shape);
  launch(exec, share_line_kernel<View>, dim3(1), dim3(unsigned(plan_threads_for(s.size, shape))), 0, false, view,
         s.items, s.size, plan);
  return plan;
}

template <int DimStep, int Groups, class Task>
void launch_mass_groups(const gpu& exec, const Task& task) {
  const work_shape& shape = task.work.shape;
  launch(exec, mass_kernel<Task, DimStep, Groups>, dim3(unsigned(shape.blocks)), dim3(unsigned(32 * shape.warps)),
         std::size_t(shape.warps * warp_mass<Task, DimStep, Groups>::memory_bytes()), true, task);
}
/// `room`: query rows at once for which there is shared memory.
template <int DimStep, class Task>
void launch_mass(const gpu& exec, const Task& task, int room) {
  constexpr int most = most_groups<Task, DimStep>();
  const int rows = int(smaller(task.most_rows, room));
  if constexpr (most >= 4)
    if (rows > 16) return launch_mass_groups<DimStep, 4>(exec, task);
  if constexpr (most >= 2)
    if (rows > 8) return launch_mass_groups<DimStep, 2>(exec, task);
  launch_mass_groups<DimStep, 1>(exec, task);
}

}  // namespace detail

/// `column_mass` on a GPU: one kernel, or two where a sequence may have more query rows than attention takes at once;
/// nothing is waited for. `lse` and `mass` lie in device memory. K is read once for every 8, 16 or 32 query rows that
/// count, V not at all. Lengths are known on the device alone: keys for whose numbers there is no room are left out.
/// No two items with queries may be of one sequence. Bits are the same from run to run, whatever else is in the step and
/// wherever pages lie; they depend on its bounds. Subnormal numbers count as 0. The step's scratch is written, as by
/// attention. Throws `invalid_argument` before anything is launched.
template <class Variant, class Positions, device_view View, class Q>
void column_mass(const gpu& exec, const attention<Variant, Positions>& a, const View& view, const device_step& s,
                 rows<Q> q, natural_lse lse, rows<float> mass, int last = all_queries) {
  static_assert(!std::is_same_v<Positions, rope_on_read>, "kvilt: RoPE on read has no kernel on the GPU");
  detail::expects(last >= 0, "the last ", last, " queries count; 0 or more are needed");
  if (s.q_rows > 0) detail::check_hooks(a.variant());
  detail::check_columns(view, s, q, lse, mass);
  detail::check_scores(a, view);
  if (s.size == 0 || s.q_rows == 0 || s.most_queries == 0 || last == 0) return;
  const bool one_unit = s.work.shape.row_blocks(s.most_queries) == 1;
  const int queries = int(smaller(last, s.most_queries));
  using query = std::remove_const_t<Q>;
  const detail::device_mass<View, Variant, Positions, query> task{
      detail::keys_of(view),
      a.variant(),
      a.positions(),
      a.scale(view.k_dim()),
      {q.data, q.token_stride, q.head_stride, q.heads, q.dim},
      lse,
      mass,
      s.items,
      s.size,
      one_unit ? s.work : detail::plan_columns(exec, view, s),
      queries,
      queries * s.work.shape.group.value(),
      one_unit && exec.reads_early()};
  detail::for_dim_step(view, [&](auto step) { detail::launch_mass<step.value>(exec, task, s.work.shape.rows); });
}

}  // namespace kvilt::inline KVILT_ABI
