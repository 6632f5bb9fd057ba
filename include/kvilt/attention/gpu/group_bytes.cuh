#pragma once

#include <kvilt/attention/gpu/prefill_tile.cuh>

/// \file
/// The shape of a block of warpgroups, which have tensor cores of their own kind (sm_90a).

namespace kvilt::inline KVILT_ABI::detail {

/// Two warpgroups have 64 query rows each, and a third loads keys and values for them. In shared memory lie their queries,
/// where in the end rows of results are; a ring of tiles, of keys and of values in turn, where rows of queries lie that are
/// yet to be turned; a ring of codes that are yet to be widened; notes; and barriers. Rows are in panels of 64 numbers, 128
/// bytes a row.
struct group_bytes {
  static constexpr int groups = 2, group_threads = 128, group_rows = 64;
  static constexpr int warps = 4 * groups, loaders = 4, threads = 32 * (warps + loaders), rows = groups * group_rows;
  static constexpr int panel_row = 128, panel_numbers = 64;
  /// Tiles that are asked for and not yet there; notes of one are kept while it may be in use. NOTE: a loader that waits for
  /// room may have as many unpublished, and `slots` are more by two, so that none waits for what waits for it.
  static constexpr int on_way = 2, raw_slots = on_way + 1, notes_slots = 3, fewest_slots = on_way + 2;

  int tokens = 0;      // of a tile
  int k_panels = 0;    // of a query
  int panels = 0;      // of a row of keys or values
  int raw = 0;         // bytes of codes of a token's key, or value, that are to be widened
  int row_stride = 0;  // floats of a row on its way to the tensor cores or from them
  int v_dim = 0;       // numbers of a result, in sixteens

  template <kv_view View>
  KVILT_HD static constexpr group_bytes of(int dims) {
    return of_segments(dims, static_cast<const View*>(nullptr));
  }
  KVILT_HD constexpr int group_queries() const {
    return int(round_up(larger(k_panels * group_rows * panel_row, 4 * scratch()), 1024));
  }
  KVILT_HD constexpr int slot() const { return tokens * panels * panel_row; }
  KVILT_HD constexpr int raw_slot() const { return tokens * raw; }
  /// Of a tile: positions and numbers; a word for every loading warp of what is alive, dropped and seen by all.
  KVILT_HD constexpr int tile_notes() const { return tokens * 4 * (1 + token_numbers::kinds) + loaders * 3 * 4; }
  /// Of the block besides: where a tile's codes lie, shares of warps, and what they work on.
  KVILT_HD constexpr int block_notes() const { return tokens * 2 * 8 + 1024; }
  static constexpr int barriers = 256;
  KVILT_HD constexpr int slots() const {
    int slots = 5;
    while (slots > fewest_slots && total_of(slots) > warp_bytes::shared) --slots;
    return slots;
  }
  KVILT_HD constexpr int ring_at() const { return groups * group_queries(); }
  KVILT_HD constexpr int raw_at() const { return ring_at() + slots() * slot(); }
  KVILT_HD constexpr int notes_at() const { return raw_at() + raw_slots * raw_slot(); }
  KVILT_HD constexpr int barriers_at() const { return notes_at() + notes_slots * tile_notes() + block_notes(); }
  KVILT_HD constexpr int total() const { return total_of(slots()); }
  /// Eight rows of floats of each warp, and their notes.
  KVILT_HD constexpr int scratch() const { return 8 * int(sizeof(float)) * (row_stride + device_row_notes); }
  KVILT_HD constexpr bool fits() const {
    return total() <= warp_bytes::shared && warps * scratch() <= slots() * slot() && v_dim <= longest_device_row;
  }

 private:
  KVILT_HD constexpr int total_of(int slots) const {
    return ring_at() + slots * slot() + raw_slots * raw_slot() + notes_slots * tile_notes() + block_notes() + barriers;
  }
  template <memory_space Space, class... Segments>
  KVILT_HD static constexpr group_bytes of_segments(int dims, const view<Space, Segments...>*) {
    group_bytes most;
    const auto raise = [](int& to, int x) { to = x > to ? x : to; };
    const auto panels = [](int dim) { return int(ceil_div(dim, panel_numbers)); };
    const auto sixteens = [](int dim) { return int(round_up(dim, 16)); };
    (raise(most.k_panels, panels(wide_tile<Segments>::k_dim(dims))), ...);
    (raise(most.panels, panels(wide_tile<Segments>::v_dim(dims))), ...);
    raise(most.panels, most.k_panels);
    (raise(most.raw, wide_tile<Segments>::widens_k ? device_tile<Segments>::k_pitch(dims) : 0), ...);
    (raise(most.raw, wide_tile<Segments>::widens_v ? device_tile<Segments>::v_pitch(dims) : 0), ...);
    (raise(most.v_dim, sixteens(wide_tile<Segments>::v_dim(dims))), ...);
    most.row_stride = most.v_dim;
    (raise(most.row_stride, sixteens(wide_tile<Segments>::k_dim(dims))), ...);
    // NOTE: results of a row of 256 numbers and the scores of 64 tokens take the registers of 128 and 128.
    most.tokens = most.row_stride > 128 ? 64 : 128;
    most.row_stride += 4;
    return most;
  }
};

/// Do warpgroups take what blocks of a view's prompts do, where there are any?
template <class View, int DimStep>
consteval bool taken_by_groups() {
  return group_bytes::of<View>(DimStep).fits();
}

}  // namespace kvilt::inline KVILT_ABI::detail
