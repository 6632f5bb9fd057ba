#pragma once

#include <kvilt/cache/device_step.hpp>
#include <kvilt/core/given.hpp>
#include <kvilt/core/math.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

/// \file
/// What an owner of device memory sends there: the host knows it, kernels read it.

namespace kvilt::inline KVILT_ABI {

/// What a captured graph is to hold of a step: more than any step for which the graph is replayed has. Steps begun with
/// the same bounds and `q_heads` in the same workspace have the same addresses and launches.
struct device_bounds {
  int sequences = 0;        // the step is padded to so many; 0: as many as it has
  int most_new_tokens = 0;  // of one sequence; 0: as the step has
  idx kv_rows = 0;          // of all together; 0: sequences x most_new_tokens, which it is at the most, or as the step
                            // has where most_new_tokens is 0
};

namespace detail {

/// The way from a host's owner to a device: `device_side<gpu>` is in cache/device_cache.cuh.
template <class Exec>
struct device_side;

/// Page-locked memory and what goes with it, of a type that `device_side` knows.
struct staging_deleter {
  void (*destroy)(void*) = nullptr;
  void operator()(void* held) const { destroy(held); }
};
using staging_handle = std::unique_ptr<void, staging_deleter>;

struct nothing {};

/// Ids [first, first + count) of those sent belong at entry `at` of the table. NOTE: short, so that many warps have one.
struct table_run {
  static constexpr int longest = 128;
  idx at = 0;
  idx first = 0;
  int count = 0;
};

struct table_changes {
  idx runs = 0, ids = 0;

  void add(position_range entries) {
    runs += ceil_div(entries.last - entries.first, table_run::longest);
    ids += entries.last - entries.first;
  }
};

/// Lists in staged memory, and where each is to go in device memory.
struct upload {
  const step_item* items_from = nullptr;  // [size]
  step_item* items = nullptr;
  const idx* positions_from = nullptr;  // [positions_count]
  idx* positions = nullptr;
  const table_run* runs = nullptr;  // [run_count]
  const page_id* ids = nullptr;     // of all runs
  page_id* table = nullptr;
  idx size = 0, positions_count = 0, run_count = 0;
};

/// Where these lists lie in staged memory.
struct upload_places {
  idx items = 0, positions = 0, runs = 0, ids = 0, end = 0;

  upload_places(idx size, idx positions_count, const table_changes& changes) {
    const auto take = [&](idx bytes) { return std::exchange(end, end + round_up(bytes, 64)); };
    items = take(size * idx(sizeof(step_item)));
    positions = take(positions_count * idx(sizeof(idx)));
    runs = take(changes.runs * idx(sizeof(table_run)));
    ids = take(changes.ids * idx(sizeof(page_id)));
  }
};

/// A step's bounds with every 0 filled in. Throws `invalid_argument` where the step is beyond them.
inline device_bounds bounds_of(std::span<const int> new_tokens, const device_bounds& given) {
  device_bounds has{int(new_tokens.size()), 0, 0};
  for (const int tokens : new_tokens) {
    has.most_new_tokens = tokens > has.most_new_tokens ? tokens : has.most_new_tokens;
    has.kv_rows += tokens;
  }
  device_bounds b = given;
  if (b.sequences == 0) b.sequences = has.sequences;
  if (b.kv_rows == 0) b.kv_rows = b.most_new_tokens ? bytes_of(b.sequences, b.most_new_tokens) : has.kv_rows;
  if (b.most_new_tokens == 0) b.most_new_tokens = has.most_new_tokens;
  b.kv_rows = smaller(b.kv_rows, bytes_of(b.sequences, b.most_new_tokens));
  expects(has.sequences <= b.sequences && has.most_new_tokens <= b.most_new_tokens && has.kv_rows <= b.kv_rows,
          "a step of ", has.sequences, " sequences, ", has.most_new_tokens, " new tokens of one and ", has.kv_rows,
          " of all is begun within bounds of ", b.sequences, ", ", b.most_new_tokens, " and ", b.kv_rows);
  return b;
}

/// Bytes of `rows` positions in a workspace.
inline std::size_t position_bytes(idx rows) {
  return std::size_t(round_up(bytes_of(rows, idx(sizeof(idx))), 256));
}

/// Takes room for `rows` positions from the front of a workspace, given or not: what follows stays where it is.
inline idx* place_positions(idx rows, std::span<unsigned char>& workspace) {
  if (rows == 0) return nullptr;
  check_memory(workspace.data(), idx(workspace.size()), "a workspace of ", workspace.size(), " bytes");
  const std::size_t skip = (256 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 256) % 256;
  const std::size_t need = skip + position_bytes(rows);
  expects(workspace.size() >= need, "a workspace of ", workspace.size(), " bytes; positions of ", rows,
          " rows alone need ", need, ": see workspace_bytes");
  unsigned char* const base = workspace.data() + skip;
  workspace = workspace.subspan(need);
  return reinterpret_cast<idx*>(base);
}

/// Names the lists of items and positions in staged memory, and writes the positions.
inline step_item* put_items(upload& to, const upload_places& at, unsigned char* staged, idx size,
                            std::span<const idx> positions) {
  auto* const items = reinterpret_cast<step_item*>(staged + at.items);
  auto* const put = reinterpret_cast<idx*>(staged + at.positions);
  for (std::size_t i = 0; i < positions.size(); ++i) put[i] = positions[i];
  to.items_from = items, to.size = size;
  to.positions_from = put, to.positions_count = idx(positions.size());
  return items;
}

/// Writes what has changed of a table.
template <class Table>
void put_changes(upload& to, const upload_places& at, unsigned char* staged, const Table& table) {
  auto* const runs = reinterpret_cast<table_run*>(staged + at.runs);
  auto* const ids = reinterpret_cast<page_id*>(staged + at.ids);
  table.write(runs, ids);
  to.runs = runs, to.ids = ids, to.run_count = table.changes().runs;
  to.table = table.there();
}

/// Fills up to `size` items with sequences that have nothing.
inline void pad_items(const step& s, step_item* items, idx from, idx size) {
  for (idx i = from; i < size; ++i) items[i] = {-1, 0, 0, s.kv_rows, s.q_rows, {}};
}

}  // namespace detail
}  // namespace kvilt::inline KVILT_ABI
