#pragma once

#include <kvilt/attention/gpu/task.cuh>
#include <kvilt/gpu/gpu.cuh>

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

/// The same of chunks 2 x block and 2 x block + 1: from where chunk 0 or 1 of the row lies.
template <int Pitch>
__device__ ptx::u32 pair_at(ptx::u32 first, int block) {
  constexpr int pairs = Pitch % 128 == 0 ? 4 : 2;  // that change places with each other
  return (first ^ ptx::u32(block % pairs * 32)) + ptx::u32(block / pairs * (pairs * 32));
}
/// The same of row `row + more` where `more` is a multiple of a power of two that `row` is less than, from where the chunk
/// of row `row` lies.
template <int Pitch>
__device__ ptx::u32 below(ptx::u32 chunk, int more) {
  return (chunk ^ ptx::u32(swizzle<Pitch>(more) * 16)) + ptx::u32(more * Pitch);
}

/// Where a loader is on the line: in shared memory, since registers are what attention is short of.
struct alignas(16) loader_state {
  // Rows [plain_first, plain_last) are there and may be seen, at slots and positions that differ from their number by
  // these; so do those of all rows before `known_last`.
  int slot = 0, position = 0, plain_first = 0, plain_last = 0;
  int known_last = 0;
  int count = 0;                      // rows of the segment
  int seen_first = 0, seen_last = 0;  // positions that the unit's rows may see
  int sequence = 0, segment = 0;
  unit_seat seat;
  idx at = 0;  // the line beyond the unit
};
static_assert(sizeof(loader_state) <= warp_bytes::state);

/// Brings a warp's share of keys and values to its ring, step by step, ahead of their use, across segments and units.
/// Lanes 0 to 15 look after the keys of a step's tokens, lanes 16 to 31 after their values.
template <class Task, int DimStep>
class key_loader {
 public:
  /// Rows [first_row, first_row + rows) of every unit of the share.
  __device__ key_loader(const Task& task, loader_state& state, const team_share& share, int head_of_team, int first_row,
                        int rows)
      : task_(task),
        state_(state),
        end_(share.end),
        head_of_team_(head_of_team),
        first_row_(first_row),
        rows_(rows),
        policy_(ptx::read_once_policy()) {
    loader_state s;
    s.at = share.at;
    sit(s, share.seat);
    go_on(s, false);
    look();
  }

  /// Starts the copies of the next step, if there is one, into `slot`. Of what the step before may have written, only
  /// after a wait for it: `waited`.
  __device__ void issue(ptx::u32 slot, bool& waited) {
    if (row_ < row_end_) {
      if (!waited && __any_sync(all, position_ >= fresh_)) end_early_reads(waited);
      visit_segment(task_.view, segment(), [&](const auto& seg) { load(seg, slot); });
      row_ += tokens;
      if (row_ >= row_end_) go_on(state_, waited);
      look();
    }
    ptx::commit_copies();
  }

  /// The unit that begins at `at`, of sequence `item` or a later one: mostly that which keys are brought of by now.
  __device__ unit_seat seat_from(idx at, int item) const {
    unit_seat seat = state_.seat;
    if (state_.at - (seat.end - seat.step) != at) return seat_at(task_.work, task_.items, at, end_, item);
    seat.head -= head_of_team_;
    return seat;
  }

 private:
  using view_type = typename Task::view_type;
  static constexpr int tokens = work_shape::tokens;
  static constexpr ptx::u32 all = 0xffffffffu;

  __device__ static int lane() { return int(threadIdx.x) % 32; }
  __device__ int segment() const { return view_type::segments == 1 ? 0 : state_.segment; }

  /// Begins a unit.
  __device__ void sit(loader_state& s, const unit_seat& seat) {
    s.seat = seat;
    s.seat.head += head_of_team_;
    s.at += seat.end - seat.step;
    s.segment = -1;
    const step_item& item = task_.items[seat.item];
    const position_range seen =
        seen_by_rows(task_, item, s.seat.head, seat.first_row + first_row_, seat.rows_from(first_row_, rows_));
    s.seen_first = int(smaller(larger(seen.first, 0), 0x7fffffff));
    s.seen_last = int(smaller(larger(seen.last, 0), 0x7fffffff));
    s.sequence = item.sequence;
    // NOTE: of a sequence to which another item appends nothing is said here.
    fresh_ = item.new_tokens > 0 ? int(smaller(item.n.before, item.n.body_before)) : 0;
  }

  /// Asks for the queries of a unit that comes, whose rows are needed when its keys are here.
  __device__ void fetch_queries(const unit_seat& seat) const {
    const int rows = seat.rows_from(first_row_, rows_);
    if (lane() >= rows) return;
    const step_item& item = task_.items[seat.item];
    const where w = where_of(task_, item, seat.head, seat.first_row + first_row_ + lane());
    const auto* const row = task_.q.at(item.q_row + w.q_index, w.q_head);
    for (int d = 0; d < task_.view.k_dim(); d += 128 / int(sizeof(*row)))
      asm volatile("prefetch.global.L1 [%0];" ::"l"(row + d));
  }

  /// To the next run of steps; where there is none, `row_` is not below `row_end_`.
  __device__ void go_on(loader_state s, bool waited) {
    row_ = row_end_ = 0;
    while (true) {
      if (s.segment + 1 >= view_type::segments) {
        if (s.at >= end_) break;
        sit(s, seat_at(task_.work, task_.items, s.at, end_, s.seat.item));
        if (waited) fetch_queries(s.seat);
      }
      ++s.segment;
      const step_item& item = task_.items[s.seat.item];
      const step_range run = run_of(task_, item, s.seat, s.segment, {s.seen_first, s.seen_last});
      if (run.first >= run.last) continue;
      visit_segment(task_.view, s.segment, [&](const auto& seg) {
        s.count = int(seg.retention.count(item.n, item.sequence, s.seat.head));
        const int skipped = int(seg.retention.at(item.n, item.sequence, s.seat.head, 0).slot % tokens);
        row_ = run.first * tokens - skipped;
        row_end_ = run.last * tokens - skipped;
      });
      s.plain_last = s.known_last = -tokens;
      break;
    }
    set(s);
  }
  __device__ void set(const loader_state& s) {
    __syncwarp();
    if (lane() == 0) state_ = s;
    __syncwarp();
  }

  /// Looks up where the tokens of the next step lie. Not waited for until `load` needs it.
  __device__ void look() {
    if (row_ >= row_end_) return;
    visit_segment(task_.view, segment(), [&](const auto& seg) {
      if (row_ >= state_.known_last) know(seg);
      const int i = row_ + lane() % tokens;
      const int plain_first = state_.plain_first, plain_last = state_.plain_last;
      position_ = i + state_.position;
      page_ = -1;
      together_ = false;
      if (row_ >= plain_first && row_ + tokens <= plain_last) {
        const place p = seg.layout.locate(state_.sequence, state_.seat.head, i + state_.slot);
        page_ = int(p.page);
        row_in_page_ = p.row;
        together_ = p.run >= tokens;
      } else {
        look_at_each(seg, i);
      }
    });
  }
  /// Where rows are not all there, or do not all follow each other.
  template <class Segment>
  __device__ void look_at_each(const Segment& seg, int i) {
    const loader_state& s = state_;
    if (i < 0 || i >= s.count) return;
    int slot = i + s.slot;
    if (i >= s.known_last) {
      const kept_row kept = seg.retention.at(task_.items[s.seat.item].n, s.sequence, s.seat.head, i);
      slot = int(kept.slot);
      position_ = int(kept.position);
    }
    if (position_ < s.seen_first || position_ >= s.seen_last) return;
    const place p = seg.layout.locate(s.sequence, s.seat.head, slot);
    page_ = int(p.page);
    row_in_page_ = p.row;
  }
  /// Finds how far rows from the next step's on follow each other.
  template <class Segment>
  __device__ void know(const Segment& seg) {
    loader_state s = state_;
    const int first = row_ > 0 ? row_ : 0;
    const kept_row kept = seg.retention.at(task_.items[s.seat.item].n, s.sequence, s.seat.head, first);
    s.slot = int(kept.slot) - first;
    s.position = int(kept.position) - first;
    s.known_last = first + int(smaller(kept.run, s.count - first));
    s.plain_first = int(larger(first, s.seen_first - s.position));
    s.plain_last = int(smaller(s.known_last, s.seen_last - s.position));
    set(s);
  }

  template <class Segment>
  __device__ void load(const Segment& seg, ptx::u32 slot) const {
    using tile = device_tile<Segment>;
    const int head = state_.seat.head;
    const bool of_values = lane() >= tokens;
    const ptx::u32 alive = __ballot_sync(all, page_ >= 0);
    const ptx::u32 keys = slot + tile::notes, values = keys + (tile::k_codes ? tokens * tile::k_pitch(DimStep) : 0);
    const place mine{page_, row_in_page_, 1};
    ptx::u32 upper = 0;
    if constexpr (tile::k_params || tile::v_params) {
      const plane& params = of_values ? seg.planes.v_params : seg.planes.k_params;
      const auto at = reinterpret_cast<std::uintptr_t>(params.at(mine, head, row_in_page_));
      if (of_values ? tile::v_params : tile::k_params)
        ptx::copy_word_async(slot + slot_notes::params + 4u * ptx::u32(lane()),
                             reinterpret_cast<const void*>(at & ~std::uintptr_t(3)), page_ >= 0);
      upper = __ballot_sync(all, (at & 2) != 0);
    }
    if constexpr (tile::k_codes || tile::v_codes) {
      // Rows of one run, each whole: from the first one on.
      if (alive == all && __shfl_sync(all, together_, 0)) {
        const place first{page_, __shfl_sync(all, row_in_page_, 0), 1};
        if constexpr (tile::k_codes)
          copy_run<tile::k_pitch(DimStep)>(keys, seg.planes.k_codes, first, head, tile_row_bytes(seg.k));
        if constexpr (tile::v_codes)
          copy_run<tile::v_pitch(DimStep)>(values, seg.planes.v_codes, first, head, tile_row_bytes(seg.v));
      } else {
        const unsigned char* at = (of_values ? seg.planes.v_codes : seg.planes.k_codes).at(mine, head, row_in_page_);
        if constexpr (tile::k_codes) copy_rows<tile::k_pitch(DimStep)>(keys, at, alive, 0, tile_row_bytes(seg.k));
        if constexpr (tile::v_codes)
          copy_rows<tile::v_pitch(DimStep)>(values, at, alive, tokens, tile_row_bytes(seg.v));
      }
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
      const ptx::u32 there = chunk_at<Pitch>(row, chunk);
#pragma unroll
      for (int k = 0; k < tokens / at_once; ++k)
        copy_chunk<Pitch>(to + below<Pitch>(there, k * at_once), chunk, mine + k * (at_once * codes.record_stride),
                          bytes);
    } else {
#pragma unroll
      for (int k = 0; k < tokens * chunks / 32; ++k) {
        const int i = k * 32 + lane(), row = i / chunks, chunk = i % chunks;
        copy_chunk<Pitch>(to + chunk_at<Pitch>(row, chunk), chunk, from + row * codes.record_stride + 16 * chunk,
                          bytes);
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
                            __shfl_sync(all, reinterpret_cast<unsigned long long>(at), first_lane + row)) +
                        16 * chunk;
      const bool there = alive >> row & 1;
      if (bytes == Pitch)
        ptx::copy_async(to + chunk_at<Pitch>(row, chunk), from, there, policy_);
      else
        copy_part(to + chunk_at<Pitch>(row, chunk), chunk, from, there ? bytes : 0);
    }
  }

  /// One chunk of a row of `bytes` bytes, which may end in it or before it.
  template <int Pitch>
  __device__ void copy_chunk(ptx::u32 to, int chunk, const unsigned char* from, int bytes) const {
    if (bytes == Pitch)
      ptx::copy_async(to, from, policy_);
    else
      copy_part(to, chunk, from, bytes);
  }
  __device__ void copy_part(ptx::u32 to, int chunk, const unsigned char* from, int bytes) const {
    const int left = bytes - 16 * chunk;
    if (bytes % 16 == 0)
      ptx::copy_async(to, from, left > 0, policy_);
    else
      ptx::copy_async(to, from, ptx::u32(left < 0 ? 0 : left > 16 ? 16 : left), policy_);
  }

  const Task& task_;
  loader_state& state_;
  idx end_;
  int head_of_team_, first_row_, rows_;
  std::uint64_t policy_;
  int fresh_ = 0;              // the first position that this step may write
  int row_ = 0, row_end_ = 0;  // of the segment: the next step's first, before row 0 where it begins within the step
  // Of this lane's token of the next step.
  int page_ = -1, row_in_page_ = 0, position_ = 0;
  bool together_ = false;  // all sixteen follow each other in their page
};

}  // namespace kvilt::inline KVILT_ABI::detail
