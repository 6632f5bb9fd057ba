#pragma once

#include <kvilt/attention/gpu/group_bytes.cuh>
#include <kvilt/attention/gpu/rows.cuh>
#include <kvilt/gpu/wgmma.cuh>

/// \file
/// Tiles of keys and values on their way from those that load them to the warpgroups that multiply them.

namespace kvilt::inline KVILT_ABI::detail {

/// One entry of a ring, and whether it goes round for an odd time.
template <int Slots>
struct ring_place {
  int slot = 0;
  ptx::u32 phase = 0;

  __device__ void advance(int by) {
    slot += by;
    if (slot >= Slots) slot -= Slots, phase ^= 1;
  }
};

/// Where a chunk of 16 bytes lies in a tile of `Rows` rows: panels of 128 bytes of each row, after each other.
template <int Rows>
__device__ ptx::u32 panel_chunk(int row, int chunk) {
  return ptx::u32(chunk / 8 * (Rows * group_bytes::panel_row) + row * group_bytes::panel_row +
                  ((chunk ^ row) % 8) * 16);
}

/// The same of row `row + more` where `more` is a multiple of a power of two that `row` is less than, from where the chunk
/// of row `row` lies.
__device__ inline ptx::u32 panel_chunk_below(ptx::u32 chunk, int more) {
  return (chunk ^ ptx::u32(more % 8 * 16)) + ptx::u32(more * group_bytes::panel_row);
}

/// What all of a block know of its tiles. A tile's keys and values are two entries of the ring, one after the other: `full`
/// when all loaders have published theirs, `empty` when all warps that multiply have done with it; the first of a segment
/// may come when all of these are `ready` for it, where queries lie in the ring. A block's rows are `given` by the loaders,
/// and `done` when all warps that multiply have left their results.
template <class Task, int DimStep>
class group_tiles {
 protected:
  using view_type = typename Task::view_type;
  using u32 = ptx::u32;
  static constexpr u32 all = 0xffffffffu;
  static constexpr group_bytes bytes = group_bytes::of<view_type>(DimStep);
  static constexpr int tokens = bytes.tokens, slots = bytes.slots(), of_loader = tokens / group_bytes::loaders;
  using place_in_ring = ring_place<slots>;

  struct tile_notes {
    int positions[tokens];
    alignas(8) float numbers[token_numbers::kinds][tokens];
    u32 alive[group_bytes::loaders], dropped[group_bytes::loaders],
        whole[group_bytes::loaders];  // of each one's tokens
  };
  static_assert(sizeof(tile_notes) <= bytes.tile_notes());
  /// Rows that the block works on: of an item and KV head, `count` from `first` on.
  struct block_share {
    lengths n;
    item_rows rows;
    int head, first, count;
    int_range seen[group_bytes::loaders];  // positions that a quarter of them may see
  };
  struct block_notes {
    const unsigned char *k_codes[tokens], *v_codes[tokens];  // of the tile that is asked for
    block_share blocks[2];                                   // one that is worked on, and one that comes
    warp_share warps[group_bytes::warps];
  };
  static_assert(sizeof(block_notes) <= bytes.block_notes());

 public:
  /// Barriers of warps: of the groups' turns, of those that multiply, of each group of them, and of the loaders.
  static constexpr int turns = 1, multipliers = 3, of_group = 4, loaders = 6;
  static constexpr bool adds_weights = true;
  /// Do queries lie in the ring before they are multiplied?
  static constexpr bool turns_queries = !queries_as_given<Task>();

  __device__ group_tiles(const Task& task, unsigned char* memory)
      : task_(task),
        memory_(memory),
        notes_(*reinterpret_cast<block_notes*>(memory + bytes.notes_at() +
                                               group_bytes::notes_slots * bytes.tile_notes())) {}

  /// By one thread, before all else.
  __device__ void begin_barriers() const {
    for (int i = 0; i < slots; ++i) {
      ptx::begin_barrier(full(i), 32 * group_bytes::loaders);
      ptx::begin_barrier(empty(i), group_bytes::warps);
    }
    ptx::begin_barrier(ready(), group_bytes::warps);
    for (int i = 0; i < 2; ++i) {
      ptx::begin_barrier(given(i), group_bytes::loaders);
      ptx::begin_barrier(done(i), group_bytes::warps);
    }
  }

  __device__ warp_share& share(int warp) const { return notes_.warps[warp]; }
  /// Rows of floats of a warp's, which lie in the ring: there are no tiles while they are in use.
  __device__ warp_rows scratch(int warp) const { return rows_at(bytes.ring_at() + warp * bytes.scratch()); }
  /// The same where results are left: no warp of the group multiplies its queries any more.
  __device__ warp_rows results(int warp) const {
    return rows_at(warp / 4 * bytes.group_queries() + warp % 4 * bytes.scratch());
  }
  /// Where a chunk of a query's lies, of rows of all groups, whatever the rows' pitch.
  template <int>
  __device__ u32 query_at(int row, int chunk) const {
    return queries(row / group_bytes::group_rows) +
           panel_chunk<group_bytes::group_rows>(row % group_bytes::group_rows, chunk);
  }
  __device__ u32 queries(int group) const { return address(group * bytes.group_queries()); }

  /// Is there anything that the block's rows may see of a segment?
  template <class Segment>
  __device__ bool begin(const Segment& seg) {
    const block_share& b = block();
    seen_ = {0x7fffffff, 0};
#pragma unroll
    for (int i = 0; i < group_bytes::loaders; ++i)
      seen_ = {min(seen_.first, b.seen[i].first), max(seen_.last, b.seen[i].last)};
    run_ = rows_to_read(seg, b.n, b.rows.sequence, b.head, where_of(task_, b.rows, b.head, b.first).q_position, seen_);
    tiles_ = run_.first < run_.last ? (run_.last - run_.first + tokens - 1) / tokens : 0;
    return tiles_ > 0;
  }
  __device__ int tiles() const {
    return tiles_;
  }

 protected:
  __device__ block_share& block() const {
    return notes_.blocks[blocks_ % 2];
  }
  __device__ warp_rows rows_at(int at) const {
    return warp_rows::in(memory_ + at, bytes.row_stride);
  }
  __device__ u32 address(int at) const {
    return ptx::shared_address(memory_) + u32(at);
  }
  __device__ u32 slot_at(int slot) const {
    return address(bytes.ring_at() + slot * bytes.slot());
  }
  __device__ u32 full(int slot) const {
    return address(bytes.barriers_at() + 8 * slot);
  }
  __device__ u32 empty(int slot) const {
    return address(bytes.barriers_at() + 8 * (slots + slot));
  }
  __device__ u32 ready() const {
    return address(bytes.barriers_at() + 16 * slots);
  }
  __device__ u32 given(int which) const {
    return address(bytes.barriers_at() + 16 * slots + 8 + 8 * which);
  }
  __device__ u32 done(int which) const {
    return address(bytes.barriers_at() + 16 * slots + 24 + 8 * which);
  }
  __device__ tile_notes& notes_of(int slot) const {
    return *reinterpret_cast<tile_notes*>(memory_ + bytes.notes_at() + slot * bytes.tile_notes());
  }
  __device__ static int lane() {
    return int(threadIdx.x) % 32;
  }

  const Task& task_;
  unsigned char* memory_;
  block_notes& notes_;
  int_range seen_, run_;  // positions; rows of the segment
  int tiles_ = 0;
  u32 blocks_ = 0;  // that were taken before
};

/// As warps see them that multiply.
template <class Task, int DimStep>
class loaded_tiles : public group_tiles<Task, DimStep> {
  using base = group_tiles<Task, DimStep>;
  using u32 = ptx::u32;
  using base::slots, base::of_loader, base::notes_of, base::lane;

 public:
  __device__ loaded_tiles(const Task& task, unsigned char* memory) : base(task, memory) { values_.slot = 1; }

  /// The rows that the warp is to take next, if any.
  __device__ bool take(int first, int most) {
    ptx::wait_until_over(this->given(int(this->blocks_ % 2)), this->blocks_ / 2);
    const auto& b = this->block();
    if (b.count == 0) return false;
    // NOTE: a warp without rows goes along with the others, as if it had the block's first.
    const int count = min(max(b.count - first, 0), most);
    if (lane() == 0) this->share(int(threadIdx.x) / 32) = {b.rows, b.head, b.first + (count > 0 ? first : 0), count};
    __syncwarp();
    return true;
  }
  __device__ void done_with_rows() {
    __syncwarp();
    if (lane() == 0) ptx::arrive(this->done(int(this->blocks_ % 2)));
    ++this->blocks_;
  }

  /// Tiles of a segment may come: rows of floats are no longer in use.
  __device__ void let_come() {
    __syncwarp();
    if (lane() == 0) ptx::arrive(this->ready());
  }
  __device__ u32 wait_for_keys() const {
    ptx::wait_until_over(this->full(keys_.slot), keys_.phase);
    ptx::show_to_products();
    return this->slot_at(keys_.slot);
  }
  __device__ u32 wait_for_values() const {
    ptx::wait_until_over(this->full(values_.slot), values_.phase);
    ptx::show_to_products();
    return this->slot_at(values_.slot);
  }
  __device__ void done_with_keys() {
    release(keys_.slot);
    keys_.advance(2);
  }
  __device__ void done_with_values() {
    release(values_.slot);
    values_.advance(2);
  }

  /// To the next tile's notes. Do all rows see all of it?
  __device__ bool next_notes() {
    current_ = next_;
    next_ = next_ + 1 == group_bytes::notes_slots ? 0 : next_ + 1;
    const auto& n = notes_of(current_);
    u32 whole = 1;
#pragma unroll
    for (int i = 0; i < group_bytes::loaders; ++i) whole &= n.whole[i];
    return whole;
  }
  __device__ int position(int token) const {
    return notes_of(current_).positions[token];
  }
  /// Of the lane's token 8 n + 2 t + i.
  __device__ bool alive(int n, int i) const {
    return bit(notes_of(current_).alive, n, i);
  }
  __device__ bool dropped(int n, int i) const {
    return bit(notes_of(current_).dropped, n, i);
  }
  /// What is said of a token, and of the next; of one that is a multiple of two.
  __device__ float2 pair_of(int kind, int token) const {
    return *reinterpret_cast<const float2*>(notes_of(current_).numbers[kind] + token);
  }

 private:
  /// NOTE: a word is shifted by the lane's part once for all of its tokens.
  __device__ static bool bit(const u32 (&words)[group_bytes::loaders], int n, int i) {
    return words[8 * n / of_loader] >> (2 * (lane() % 4)) & 1u << (8 * n % of_loader + i);
  }
  __device__ void release(int slot) const {
    __syncwarp();
    if (lane() == 0) ptx::arrive(this->empty(slot));
  }

  typename base::place_in_ring keys_, values_;
  int current_ = 0, next_ = 0;
};

}  // namespace kvilt::inline KVILT_ABI::detail
