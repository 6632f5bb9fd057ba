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

/// What the chunk's number is changed by where chunks of row `row` lie: so that one chunk of eight rows meets no bank twice.
template <int Pitch>
__device__ int swizzle(int row) {
  static_assert(Pitch % 64 == 0);
  if constexpr (Pitch % 128 == 0)
    return row % 8;
  else
    return row / 2 % 4;
}
/// Bytes from a tile to chunk `chunk` of row `row`.
template <int Pitch>
__device__ ptx::u32 chunk_at(int row, int chunk) {
  return ptx::u32(row * Pitch + (chunk ^ swizzle<Pitch>(row)) * 16);
}

/// Where a loader is on the line: in shared memory, since registers are what attention is short of.
struct alignas(16) loader_state {
  // Rows before `known_last` are at slots and positions that differ from their number by these.
  int known_slot = 0, known_position = 0, known_last = 0;
  int count = 0;                      // rows of the segment
  int seen_first = 0, seen_last = 0;  // positions that the unit's rows may see
  int skipped = 0;                    // slots before the segment's first in its step
  int sequence = 0;
  unit_seat seat;
  int segment = 0;
  idx at = 0, end = 0;  // the line beyond the unit
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
    __syncwarp();
    if (lane() == 0) {
      state_.at = at;
      state_.end = end;
      state_.seat.item = item;
      state_.segment = view_type::segments;
    }
    __syncwarp();
    go_on();
    look();
  }

  /// Starts the copies of the next step, if there is one, into `slot`.
  __device__ void issue(ptx::u32 slot) {
    if (step_ < run_end_) {
      visit_segment(task_.view, segment(), [&](const auto& seg) { load(seg, slot); });
      if (++step_ == run_end_) go_on();
      look();
    }
    ptx::commit_copies();
  }

 private:
  using view_type = typename Task::view_type;
  static constexpr int tokens = work_shape::tokens;
  static constexpr ptx::u32 all = 0xffffffffu;

  __device__ static int lane() { return int(threadIdx.x) % 32; }
  __device__ int segment() const { return view_type::segments == 1 ? 0 : state_.segment; }

  /// To the next run of steps; where there is none, `step_` is not below `run_end_`.
  __device__ void go_on() {
    loader_state s = state_;
    step_ = run_end_ = 0;
    while (true) {
      if (++s.segment >= view_type::segments) {
        if (s.at >= s.end) break;
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
      step_ = run.first;
      run_end_ = run.last;
      visit_segment(task_.view, s.segment, [&](const auto& seg) {
        s.count = int(seg.retention.count(item.n, item.sequence, s.seat.head));
        s.skipped = int(seg.retention.at(item.n, item.sequence, s.seat.head, 0).slot % tokens);
      });
      s.sequence = item.sequence;
      s.known_last = 0;
      break;
    }
    __syncwarp();
    if (lane() == 0) state_ = s;
    __syncwarp();
  }

  /// Looks up where the tokens of the next step lie. Not waited for until `load` needs it.
  __device__ void look() {
    if (step_ >= run_end_) return;
    const int first = step_ * tokens - state_.skipped, oldest = first > 0 ? first : 0;
    visit_segment(task_.view, segment(), [&](const auto& seg) {
      if (oldest >= state_.known_last) know(seg, oldest);
      const loader_state& s = state_;
      const int i = first + lane() % tokens;
      int slot = i + s.known_slot;
      position_ = i + s.known_position;
      if (i >= s.known_last && i < s.count) {
        const kept_row kept = seg.retention.at(task_.items[s.seat.item].n, s.sequence, s.seat.head, i);
        slot = int(kept.slot);
        position_ = int(kept.position);
      }
      page_ = -1;
      if (i < 0 || i >= s.count || position_ < s.seen_first || position_ >= s.seen_last) return;
      const place p = seg.layout.locate(s.sequence, s.seat.head, slot);
      page_ = int(p.page);
      row_ = p.row;
      together_ = p.run >= tokens && i + tokens <= s.known_last;
    });
  }
  /// Finds how far rows from `oldest` on follow each other.
  template <class Segment>
  __device__ void know(const Segment& seg, int oldest) {
    const step_item& item = task_.items[state_.seat.item];
    const kept_row kept = seg.retention.at(item.n, item.sequence, state_.seat.head, oldest);
    __syncwarp();
    if (lane() == 0) {
      state_.known_slot = int(kept.slot) - oldest;
      state_.known_position = int(kept.position) - oldest;
      state_.known_last = oldest + int(smaller(kept.run, state_.count - oldest));
    }
    __syncwarp();
  }

  template <class Segment>
  __device__ void load(const Segment& seg, ptx::u32 slot) const {
    using tile = device_tile<Segment>;
    const int head = state_.seat.head;
    const bool of_values = lane() >= tokens;
    const ptx::u32 alive = __ballot_sync(all, page_ >= 0);
    const ptx::u32 keys = slot + tile::notes, values = keys + (tile::k_codes ? tokens * tile::k_pitch(DimStep) : 0);
    const place mine{page_, row_, 1};
    if constexpr (tile::k_codes || tile::v_codes) {
      // Rows of one run, each whole: from the first one on.
      if (__all_sync(all, page_ >= 0 && (lane() % tokens != 0 || together_))) {
        const place first{page_, __shfl_sync(all, row_, 0), 1};
        if constexpr (tile::k_codes)
          copy_run<tile::k_pitch(DimStep)>(keys, seg.planes.k_codes, first, head, seg.k.code_bytes());
        if constexpr (tile::v_codes)
          copy_run<tile::v_pitch(DimStep)>(values, seg.planes.v_codes, first, head, seg.v.code_bytes());
      } else {
        const unsigned char* at = (of_values ? seg.planes.v_codes : seg.planes.k_codes).at(mine, head, row_);
        if constexpr (tile::k_codes) copy_rows<tile::k_pitch(DimStep)>(keys, at, alive, 0, seg.k.code_bytes());
        if constexpr (tile::v_codes) copy_rows<tile::v_pitch(DimStep)>(values, at, alive, tokens, seg.v.code_bytes());
      }
    }
    ptx::u32 upper = 0;
    if constexpr (tile::k_params || tile::v_params) {
      const plane& params = of_values ? seg.planes.v_params : seg.planes.k_params;
      const auto at = reinterpret_cast<std::uintptr_t>(params.at(mine, head, row_));
      if (of_values ? tile::v_params : tile::k_params)
        ptx::copy_word_async(slot + slot_notes::params + 4u * ptx::u32(lane()),
                             reinterpret_cast<const void*>(at & ~std::uintptr_t(3)), page_ >= 0);
      upper = __ballot_sync(all, (at & 2) != 0);
    }
    if (!of_values) ptx::store_shared_4(slot + slot_notes::positions + 4u * ptx::u32(lane()), ptx::u32(position_));
    if (lane() == 0) ptx::store_shared_8(slot + slot_notes::alive, {alive & 0xffffu, upper});
  }

  /// Rows of one run, the first at `p`.
  template <int Pitch>
  __device__ void copy_run(ptx::u32 to, const plane& codes, place p, int head, int bytes) const {
    constexpr int chunks = Pitch / 16, at_once = 32 / chunks;  // rows
    const unsigned char* const from = codes.at(p, head, p.row);
    if constexpr (at_once > 0 && 32 % chunks == 0) {
      const int row = lane() / chunks, chunk = lane() % chunks;
      const unsigned char* const mine = from + row * codes.record_stride + 16 * chunk;
#pragma unroll
      for (int k = 0; k < tokens / at_once; ++k)
        copy_chunk<Pitch>(to, row + k * at_once, chunk, mine + k * (at_once * codes.record_stride), bytes);
    } else {
#pragma unroll
      for (int k = 0; k < tokens * chunks / 32; ++k) {
        const int i = k * 32 + lane(), row = i / chunks, chunk = i % chunks;
        copy_chunk<Pitch>(to, row, chunk, from + row * codes.record_stride + 16 * chunk, bytes);
      }
    }
  }
  /// Rows whose addresses lanes `first_lane` and on have. Those that are not alive are zero.
  template <int Pitch>
  __device__ void copy_rows(ptx::u32 to, const unsigned char* at, ptx::u32 alive, int first_lane, int bytes) const {
    constexpr int chunks = Pitch / 16;
#pragma unroll
    for (int k = 0; k < tokens * chunks / 32; ++k) {
      const int i = k * 32 + lane(), row = i / chunks, chunk = i % chunks;
      const auto from = reinterpret_cast<const unsigned char*>(
          __shfl_sync(all, reinterpret_cast<unsigned long long>(at), first_lane + row));
      const bool there = alive >> row & 1;
      if (bytes == Pitch)
        ptx::copy_async(to + chunk_at<Pitch>(row, chunk), from + 16 * chunk, there, policy_);
      else
        copy_part<Pitch>(to, row, chunk, from + 16 * chunk, there ? bytes : 0);
    }
  }

  /// One chunk of a row of `bytes` bytes, which may end in it or before it.
  template <int Pitch>
  __device__ void copy_chunk(ptx::u32 to, int row, int chunk, const unsigned char* from, int bytes) const {
    if (bytes == Pitch)
      ptx::copy_async(to + chunk_at<Pitch>(row, chunk), from, policy_);
    else
      copy_part<Pitch>(to, row, chunk, from, bytes);
  }
  template <int Pitch>
  __device__ void copy_part(ptx::u32 to, int row, int chunk, const unsigned char* from, int bytes) const {
    const int left = bytes - 16 * chunk;
    if (bytes % 16 == 0)
      ptx::copy_async(to + chunk_at<Pitch>(row, chunk), from, left > 0, policy_);
    else
      ptx::copy_async(to + chunk_at<Pitch>(row, chunk), from, ptx::u32(left < 0 ? 0 : left > 16 ? 16 : left), policy_);
  }

  const Task& task_;
  loader_state& state_;
  int head_of_team_, first_row_, rows_;
  std::uint64_t policy_;
  int step_ = 0, run_end_ = 0;  // the next step, of those of the segment
  // Of this lane's token of the next step.
  int page_ = -1, row_ = 0, position_ = 0;
  bool together_ = false;  // it and the next fifteen follow each other
};

}  // namespace kvilt::inline KVILT_ABI::detail
