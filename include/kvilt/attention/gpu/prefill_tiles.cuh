#pragma once

#include <kvilt/attention/gpu/prefill_tile.cuh>
#include <kvilt/attention/gpu/rows.cuh>
#include <kvilt/attention/gpu/tile_ring.cuh>

/// \file
/// Tiles of keys and values that the warps of a block share: their way from the cache to 16-bit numbers.

namespace kvilt::inline KVILT_ABI::detail {

/// Brings the keys and values that a block's rows may see, tile by tile: one is worked on, one is on its way, and of one
/// more is known where it lies.
template <class Task, int DimStep>
class prefill_tiles {
  using view_type = typename Task::view_type;
  using u32 = ptx::u32;
  using u64 = std::uint64_t;
  static constexpr u32 all = 0xffffffffu;
  static constexpr block_bytes bytes = block_bytes::of<view_type>(DimStep);
  static constexpr int tokens = bytes.tokens, threads = block_bytes::threads, warps = block_bytes::warps;
  static constexpr u64 nowhere = ~u64(15);  // as aligned as what is somewhere

  /// Where a tile's tokens lie: bytes from a head's first codes of K and V.
  struct token_place {
    u64 k, v;
  };
  struct tile_notes {
    token_place places[tokens];
    int positions[tokens];
    u32 k_params[tokens], v_params[tokens];  // as they lie: scales of 16 bits in either half
    u32 alive[2], k_upper[2], v_upper[2];    // bits of tokens
  };
  static constexpr int notes_slots = 3;

 public:
  static constexpr bool adds_weights = false;  // but the tensor cores do

 private:
  struct block_notes {
    tile_notes tiles[notes_slots];
    alignas(8) float numbers[token_numbers::kinds][tokens];
    u32 dropped[2];
    int_range seen[warps];
    warp_share shares[warps];
    // NOTE: here, since registers are what results and scores are short of.
    lengths item;
    int sequence, head;
    idx position;        // of the first query
    int_range all_seen;  // positions
    int_range run;       // rows of the segment
  };
  static_assert(sizeof(block_notes) <= block_bytes::notes);

 public:
  __device__ prefill_tiles(const Task& task, unsigned char* memory)
      : task_(task), memory_(memory), notes_(*reinterpret_cast<block_notes*>(memory + bytes.notes_at())) {}

  /// Rows of floats of a warp's, which lie in the ring: there are no tiles while they are in use.
  __device__ warp_rows scratch(int warp) const { return rows_at(bytes.ring_at() + warp * bytes.scratch()); }
  /// The same where results are left, eight rows at a time: there are neither tiles nor queries any more.
  __device__ warp_rows results(int warp, int eight) const {
    return rows_at((warp * 2 * bytes.bands + eight) * bytes.scratch());
  }
  __device__ warp_share& share(int warp) const { return notes_.shares[warp]; }
  __device__ u32 queries() const { return address(0); }
  /// Where a chunk of a query's lies.
  template <int Pitch>
  __device__ u32 query_at(int row, int chunk) const {
    return queries() + chunk_at<Pitch>(row, chunk);
  }

  /// Begins rows of an item's, the first of them at `position`, of which this warp's may see positions `mine`.
  __device__ void sit(const step_item& item, int head, int position, int_range mine) {
    if (thread() % 32 == 0) notes_.seen[thread() / 32] = mine;
    __syncthreads();
    if (thread() != 0) return;
    notes_.item = item.n, notes_.sequence = item.sequence, notes_.head = head, notes_.position = position;
    int_range seen{0x7fffffff, 0};
#pragma unroll
    for (int i = 0; i < warps; ++i) seen = {min(seen.first, notes_.seen[i].first), max(seen.last, notes_.seen[i].last)};
    notes_.all_seen = seen;
  }
  /// Is there anything that may be seen of a segment? All warps have done with the one before.
  template <class Segment>
  __device__ bool begin(const Segment& seg) {
    __syncthreads();
    const lengths n = notes_.item;
    const int_range run = rows_to_read(seg, n, notes_.sequence, notes_.head, notes_.position, notes_.all_seen);
    tile_ = -1;
    tiles_ = run.first < run.last ? (run.last - run.first + tokens - 1) / tokens : 0;
    __syncthreads();
    if (thread() == 0) notes_.run = run;
    return tiles_ > 0;
  }
  /// Asks for the first tile; rows of floats are no longer in use.
  template <class Segment>
  __device__ void start(const Segment& seg) {
    __syncthreads();
    look(seg, 0);
    __syncthreads();
    ask(seg, 0);
    if (tiles_ > 1) look(seg, 1);
    ptx::commit_copies();
  }
  __device__ bool more() const {
    return tile_ + 1 < tiles_;
  }

  /// To the next tile: it is there for all warps. Says whether all of this block's rows see all of it, of which `sees`
  /// speaks for a warp's.
  template <class Segment, class Sees>
  __device__ bool next(const Segment& seg, Sees&& sees) {
    using tile = prefill_tile<Segment, DimStep>;
    ++tile_;
    current_ = &notes_.tiles[tile_ % notes_slots];
    bool whole = false;
    position_range range;
    if (all_alive(*current_)) range = {current_->positions[0], current_->positions[tokens - 1] + 1};
    whole = sees(Segment::retention_type::ordered ? range : position_range{});
    ptx::wait_copies<0>();
    whole = __syncthreads_and(whole);
    if (tile_ + 1 < tiles_) ask(seg, tile_ + 1);
    if (tile_ + 2 < tiles_) look(seg, tile_ + 2);
    ptx::commit_copies();

    const u32 k_codes = slot(tile_), v_codes = k_codes + u32(tokens * tile::k::pitch);
    if (!whole) drop_values<tile>(v_codes);
    u32 wide = address(bytes.widened_at());
    keys_ = k_codes, values_ = v_codes;
    if constexpr (tile::wide::widens_k) {
      widen<typename tile::k, tile::template centre<typename tile::k>, tile::k_pitch>(k_codes, keys_ = wide);
      wide += u32(tokens * tile::k_pitch);
    }
    if constexpr (tile::wide::widens_v)
      widen<typename tile::v, tile::template centre<typename tile::v>, tile::v_pitch>(v_codes, values_ = wide);
    if constexpr (tile::prepared) {
      prepare_params(seg);
      __syncthreads();
    }
    return whole;
  }
  __device__ u32 keys() const {
    return keys_;
  }
  __device__ u32 values() const {
    return values_;
  }
  __device__ int position(int token) const {
    return current_->positions[token];
  }
  /// Of the lane's token 8 n + 2 t + i.
  __device__ bool alive(int n, int i) const {
    return bit(current_->alive, 8 * n + 2 * (thread() % 4) + i);
  }
  __device__ bool dropped(int n, int i) const {
    return bit(notes_.dropped, 8 * n + 2 * (thread() % 4) + i);
  }
  /// What is said of a token, and of the next; of one that is a multiple of two.
  __device__ float2 pair_of(int kind, int token) const {
    return *reinterpret_cast<const float2*>(notes_.numbers[kind] + token);
  }

 private:
  __device__ static int thread() {
    return int(threadIdx.x);
  }
  __device__ warp_rows rows_at(int at) const {
    return warp_rows::in(memory_ + at, bytes.row_stride);
  }
  __device__ u32 address(int at) const {
    return ptx::shared_address(memory_) + u32(at);
  }
  __device__ u32 slot(int tile) const {
    return address(bytes.ring_at() + tile % block_bytes::slots * tokens * bytes.codes);
  }

  __device__ const unsigned char* head_of(const plane& p) const {
    return p.base + u64(u32(notes_.head)) * u32(p.head_stride);
  }

  /// Finds out where a tile's tokens lie, one a thread, and asks for their params.
  template <class Segment>
  __device__ void look(const Segment& seg, int tile_number) {
    using tile = prefill_tile<Segment, DimStep>;
    tile_notes& to = notes_.tiles[tile_number % notes_slots];
    const int token = thread();
    if (token >= tokens) return;
    const int_range run = notes_.run, seen = notes_.all_seen;
    const int i = run.first + tile_number * tokens + token, sequence = notes_.sequence, head = notes_.head;
    token_place there{nowhere, nowhere};
    int position = 0;
    place p;
    if (i < run.last) {
      const kept_row kept = seg.retention.at(notes_.item, sequence, head, i);
      position = int(kept.position);
      if (position >= seen.first && position < seen.last) {
        p = seg.layout.locate(sequence, head, kept.slot);
        there = {distance(seg.planes.k_codes, p), distance(seg.planes.v_codes, p)};
      }
    }
    const bool alive = there.k != nowhere;
    to.places[token] = there;
    to.positions[token] = position;
    u32 k_upper = 0, v_upper = 0;
    if constexpr (params_of_records<typename Segment::k_format>())
      k_upper = ask_params(to.k_params + token, head_of(seg.planes.k_params) + distance(seg.planes.k_params, p), alive);
    if constexpr (params_of_records<typename Segment::v_format>())
      v_upper = ask_params(to.v_params + token, head_of(seg.planes.v_params) + distance(seg.planes.v_params, p), alive);
    const u32 all_alive = __ballot_sync(all, alive);
    if (token % 32 == 0)
      to.alive[token / 32] = all_alive, to.k_upper[token / 32] = k_upper, to.v_upper[token / 32] = v_upper;
  }
  /// Asks for a tile's codes.
  template <class Segment>
  __device__ void ask(const Segment& seg, int tile_number) {
    using tile = prefill_tile<Segment, DimStep>;
    const tile_notes& notes = notes_.tiles[tile_number % notes_slots];
    const u32 keys = slot(tile_number), values = keys + u32(tokens * tile::k::pitch);
    const unsigned char *const k = head_of(seg.planes.k_codes), *const v = head_of(seg.planes.v_codes);
    const int k_bytes = tile_row_bytes(seg.k), v_bytes = tile_row_bytes(seg.v);
    constexpr int k_pitch = tile::k::pitch, v_pitch = tile::v::pitch;
    if (all_alive(notes) && k_bytes == k_pitch && v_bytes == v_pitch) {
      copy_rows<k_pitch>(
          [&](u32 at, int row, int chunk) { ptx::copy_async_shared(keys + at, k + notes.places[row].k + 16 * chunk); });
      copy_rows<v_pitch>([&](u32 at, int row, int chunk) {
        ptx::copy_async_shared(values + at, v + notes.places[row].v + 16 * chunk);
      });
    } else {
      const auto part = [](u32 to, const unsigned char* from, u64 at, int chunk, int bytes) {
        const int left = at == nowhere ? 0 : bytes - 16 * chunk;
        ptx::copy_async_shared(to, from + at + 16 * chunk, u32(left < 0 ? 0 : left > 16 ? 16 : left));
      };
      copy_rows<k_pitch>([&](u32 at, int row, int chunk) { part(keys + at, k, notes.places[row].k, chunk, k_bytes); });
      copy_rows<v_pitch>(
          [&](u32 at, int row, int chunk) { part(values + at, v, notes.places[row].v, chunk, v_bytes); });
    }
  }
  __device__ static bool all_alive(const tile_notes& notes) {
    return notes.alive[0] == all && (tokens == 32 || notes.alive[1] == all);
  }
  /// `body(where a chunk lies in its tile, row, chunk)` for each of this thread's.
  template <int Pitch, class Body>
  __device__ static void copy_rows(Body&& body) {
    constexpr int chunks = Pitch / 16, at_once = threads / chunks;  // rows
    static_assert(tokens * chunks % threads == 0);
    if constexpr (threads % chunks == 0) {
      const int row = thread() / chunks, chunk = thread() % chunks;
      const u32 first = chunk_at<Pitch>(row, chunk);
#pragma unroll
      for (int k = 0; k < tokens / at_once; ++k) body(below<Pitch>(first, k * at_once), row + k * at_once, chunk);
    } else {
#pragma unroll
      for (int k = 0; k < tokens * chunks / threads; ++k) {
        const int i = k * threads + thread(), row = i / chunks, chunk = i % chunks;
        body(chunk_at<Pitch>(row, chunk), row, chunk);
      }
    }
  }

  /// Of a tile that some row does not see all of, values that are not finite become zero: 0 x NaN is NaN.
  template <class Tile>
  __device__ void drop_values(u32 values) {
    using v = typename Tile::v;
    if (thread() < 2) notes_.dropped[thread()] = 0;
    if constexpr (v::kind() != code_kind::u8 && v::kind() != code_kind::u4) {
      constexpr int chunks = v::pitch / 16, sharers = threads / tokens;
      const int row = thread() / sharers;
      bool finite = true;
      for (int chunk = thread() % sharers; chunk < chunks; chunk += sharers)
        finite = finite && is_finite<v::kind()>(ptx::load_shared_16(values + chunk_at<v::pitch>(row, chunk)));
      __syncthreads();
      if (!finite) atomicOr(&notes_.dropped[row / 32], 1u << (row % 32));
      __syncthreads();
      if (bit(notes_.dropped, row))
        for (int chunk = thread() % sharers; chunk < chunks; chunk += sharers)
          ptx::store_shared_16(values + chunk_at<v::pitch>(row, chunk), {});
    }
    __syncthreads();
  }

  /// Codes as the 16-bit numbers that they stand for, in their order.
  template <class Codes, int Centre, int Pitch>
  __device__ static void widen(u32 from, u32 to) {
    constexpr int spread = Codes::spread, of_row = (Codes::dim * bits_of(Codes::kind()) + 127) / 128;
    for (int i = thread(); i < tokens * of_row; i += threads) {
      const int row = i / of_row, chunk = i - row * of_row;
      const uint4 codes = ptx::load_shared_16(from + chunk_at<Codes::pitch>(row, chunk));
      u32 numbers[4 * spread];
      unpack_in_order<Codes::kind(), Centre>(codes, numbers);
#pragma unroll
      for (int s = 0; s < spread; ++s)
        if (chunk * spread + s < Pitch / 16)
          ptx::store_shared_16(to + chunk_at<Pitch>(row, chunk * spread + s),
                               {numbers[4 * s], numbers[4 * s + 1], numbers[4 * s + 2], numbers[4 * s + 3]});
    }
  }

  template <class Segment>
  __device__ void prepare_params(const Segment& seg) {
    const int token = thread();
    if (token >= tokens) return;
    prepare_numbers<DimStep>(seg, notes_.head, {current_->k_params[token], bit(current_->k_upper, token)},
                             {current_->v_params[token], bit(current_->v_upper, token)},
                             [&](int kind, float x) { notes_.numbers[kind][token] = x; });
  }
  __device__ static bool bit(const u32 (&bits)[2], int token) {
    return bits[token / 32] >> (token % 32) & 1;
  }

  const Task& task_;
  unsigned char* memory_;
  block_notes& notes_;
  const tile_notes* current_ = nullptr;
  u32 keys_ = 0, values_ = 0;
  int tile_ = 0, tiles_ = 0;
};

}  // namespace kvilt::inline KVILT_ABI::detail
