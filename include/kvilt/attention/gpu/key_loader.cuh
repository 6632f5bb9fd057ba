#pragma once

#include <kvilt/attention/gpu/task.cuh>

namespace kvilt::inline KVILT_ABI::detail {

/// Where a step's bytes lie in its slot of a warp's ring: notes, keys, values.
struct slot_notes {
  static constexpr int positions = 0;  // [16] of 32 bits
  static constexpr int alive = 64;     // bit i: token i is there and may be seen
  static constexpr int upper = 68;     // bit i: params i are in the upper half of their 4 bytes
  static constexpr int params = 80;    // of K [16] and of V [16], 4 bytes each
};

/// The chunk of a row in which chunk `chunk` lies, so that neither reading 16 bytes of 4 chunks of two rows, nor one
/// chunk of 8 rows, meets a bank twice.
template <int Pitch>
__device__ int swizzled(int row, int chunk) {
  static_assert(Pitch % 64 == 0);
  if constexpr (Pitch % 128 == 0)
    return chunk ^ ((row & 1) << 2 | (row >> 1 & 3));
  else
    return chunk ^ (row >> 1 & 3);
}

/// Where a loader is on the line: in shared memory, since registers are what attention is short of.
struct loader_state {
  idx at = 0, end = 0;  // the line beyond the unit
  unit_seat seat;
  int seen_first = 0, seen_last = 0;  // positions that the unit's rows may see
  int segment = -1;                   // below 0: there is nothing left
  int step = 0, run_end = 0;          // the next step, of those of the segment
  int count = 0, skipped = 0;         // rows of the segment, and slots before the first in its step
  // Rows before `known_last` are at slots and positions that differ from their number by these.
  int known_slot = 0, known_position = 0, known_last = 0;
};
static_assert(sizeof(loader_state) <= warp_bytes::state);

/// Brings a warp's share of keys and values to its ring, step by step, ahead of their use, across segments and units.
/// Lanes 0 to 15 look after the keys of a step's tokens, lanes 16 to 31 after their values.
template <class Task, int DimStep>
class key_loader {
 public:
  /// Rows [first_row, first_row + rows) of every unit between `at` and `end` on the line.
  __device__ key_loader(const Task& task, loader_state& state, idx at, idx end, int item, int head_of_team,
                        int first_row, int rows)
      : task_(task),
        state_(state),
        head_of_team_(head_of_team),
        first_row_(first_row),
        rows_(rows),
        policy_(ptx::read_once_policy()) {
    loader_state s;
    s.at = at;
    s.end = end;
    s.seat.item = item;
    s.segment = view_type::segments;
    set(go_on(s));
    look();
  }

  /// Starts the copies of the next step, if there is one, into `slot`.
  __device__ void issue(ptx::u32 slot) {
    if (state_.segment >= 0) {
      visit_segment(task_.view, state_.segment, [&](const auto& seg) { load(seg, slot); });
      const int step = state_.step + 1;
      if (step < state_.run_end) {
        __syncwarp();
        if (lane() == 0) state_.step = step;
        __syncwarp();
      } else {
        set(go_on(state_));
      }
      look();
    }
    ptx::commit_copies();
  }

 private:
  using view_type = typename Task::view_type;
  static constexpr int tokens = work_shape::tokens;

  __device__ static int lane() { return int(threadIdx.x) % 32; }
  __device__ void set(const loader_state& s) const {
    __syncwarp();
    if (lane() == 0) state_ = s;
    __syncwarp();
  }

  /// The state at the next run of steps.
  __device__ loader_state go_on(loader_state s) const {
    while (true) {
      if (++s.segment >= view_type::segments) {
        if (s.at >= s.end) {
          s.segment = -1;
          return s;
        }
        s.seat = seat_at(task_, s.at, s.end, s.seat.item, head_of_team_);
        s.at += s.seat.end - s.seat.step;
        s.segment = 0;
        const int rows = s.seat.rows_from(first_row_, rows_);
        const position_range seen =
            seen_by_rows(task_, task_.items[s.seat.item], s.seat.head, s.seat.first_row + first_row_, rows);
        s.seen_first = int(larger(seen.first, 0));
        s.seen_last = int(smaller(seen.last, 0x7fffffff));
      }
      const step_item& item = task_.items[s.seat.item];
      const step_range run = run_of(task_, item, s.seat, s.segment, {s.seen_first, s.seen_last});
      if (run.first >= run.last) continue;
      s.step = run.first;
      s.run_end = run.last;
      visit_segment(task_.view, s.segment, [&](const auto& seg) {
        s.count = int(seg.retention.count(item.n, item.sequence, s.seat.head));
        s.skipped = int(seg.retention.at(item.n, item.sequence, s.seat.head, 0).slot % tokens);
      });
      s.known_last = 0;
      return s;
    }
  }

  /// Looks up where the tokens of the next step lie. Not waited for until `load` needs it.
  __device__ void look() {
    page_ = -1;
    if (state_.segment < 0) return;
    const step_item& item = task_.items[state_.seat.item];
    const int first = state_.step * tokens - state_.skipped, oldest = first > 0 ? first : 0;
    const int i = first + lane() % tokens, count = state_.count, head = state_.seat.head;
    visit_segment(task_.view, state_.segment, [&](const auto& seg) {
      if (oldest >= state_.known_last) {
        const kept_row kept = seg.retention.at(item.n, item.sequence, head, oldest);
        __syncwarp();
        if (lane() == 0) {
          state_.known_slot = int(kept.slot) - oldest;
          state_.known_position = int(kept.position) - oldest;
          state_.known_last = oldest + int(smaller(kept.run, count - oldest));
        }
        __syncwarp();
      }
      if (i < 0 || i >= count) return;
      int slot = i + state_.known_slot;
      position_ = i + state_.known_position;
      if (i >= state_.known_last) {
        const kept_row kept = seg.retention.at(item.n, item.sequence, head, i);
        slot = int(kept.slot);
        position_ = int(kept.position);
      }
      if (position_ < state_.seen_first || position_ >= state_.seen_last) return;
      const place p = seg.layout.locate(item.sequence, head, slot);
      page_ = int(p.page);
      row_ = p.row;
    });
  }

  template <class Segment>
  __device__ void load(const Segment& seg, ptx::u32 slot) {
    using tile = device_tile<Segment>;
    const int lane = this->lane(), head = state_.seat.head;
    const bool of_values = lane >= tokens, alive = page_ >= 0;
    const ptx::u32 keys = slot + tile::notes, values = keys + (tile::k_codes ? tokens * tile::k_pitch(DimStep) : 0);
    const place p{page_, row_, 1};
    if constexpr (tile::k_codes || tile::v_codes) {
      const unsigned char* at = (of_values ? seg.planes.v_codes : seg.planes.k_codes).at(p, head, p.row);
      if (!alive) at = nullptr;
      if constexpr (tile::k_codes) copy_rows<tile::k_pitch(DimStep)>(keys, at, 0, seg.k.code_bytes());
      if constexpr (tile::v_codes) copy_rows<tile::v_pitch(DimStep)>(values, at, tokens, seg.v.code_bytes());
    }
    constexpr bool k_params = tile::k_params, v_params = tile::v_params;
    ptx::u32 upper = 0;
    if constexpr (k_params || v_params) {
      const plane& params = of_values ? seg.planes.v_params : seg.planes.k_params;
      const bool wanted = of_values ? v_params : k_params;
      const auto at = reinterpret_cast<std::uintptr_t>(params.at(p, head, p.row));
      if (wanted) copy_word(slot + slot_notes::params + 4u * ptx::u32(lane), at & ~std::uintptr_t(3), alive);
      upper = __ballot_sync(0xffffffffu, (at & 2) != 0);
    }
    const ptx::u32 live = __ballot_sync(0xffffffffu, alive);
    if (!of_values) ptx::store_shared_4(slot + slot_notes::positions + 4u * ptx::u32(lane), ptx::u32(position_));
    if (lane == 0) {
      ptx::store_shared_4(slot + slot_notes::alive, live & 0xffffu);
      if constexpr (k_params || v_params) ptx::store_shared_4(slot + slot_notes::upper, upper);
    }
  }

  /// Rows of `bytes` bytes, whose addresses lanes `first_lane` and on have, or null: zero. So are chunks beyond a row.
  template <int Pitch>
  __device__ void copy_rows(ptx::u32 to, const unsigned char* at, int first_lane, int bytes) const {
    constexpr int chunks = Pitch / 16;
#pragma unroll
    for (int k = 0; k < tokens * chunks / 32; ++k) {
      const int i = k * 32 + lane(), row = i / chunks, chunk = i % chunks;
      const auto from = reinterpret_cast<const unsigned char*>(
          __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(at), first_lane + row));
      const int left = from ? bytes - 16 * chunk : 0;
      ptx::copy_async(to + ptx::u32(row * Pitch + swizzled<Pitch>(row, chunk) * 16),
                      left > 0 ? from + 16 * chunk : at_nothing(),
                      ptx::u32(left < 0    ? 0
                               : left > 16 ? 16
                                           : left),
                      policy_);
    }
  }
  /// An address that is valid where nothing is read.
  __device__ const unsigned char* at_nothing() const {
    return reinterpret_cast<const unsigned char*>(task_.items);
  }

  __device__ void copy_word(ptx::u32 to, std::uintptr_t from, bool alive) const {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to),
                 "l"(alive ? from : reinterpret_cast<std::uintptr_t>(at_nothing())), "r"(alive ? 4u : 0u)
                 : "memory");
  }

  const Task& task_;
  loader_state& state_;
  int head_of_team_, first_row_, rows_;
  std::uint64_t policy_;
  // Of this lane's token of the next step.
  int page_ = -1, row_ = 0, position_ = 0;
};

}  // namespace kvilt::inline KVILT_ABI::detail
