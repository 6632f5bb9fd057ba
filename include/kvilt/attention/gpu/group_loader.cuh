#pragma once

#include <kvilt/attention/gpu/box_maps.cuh>
#include <kvilt/attention/gpu/group_tiles.cuh>
#include <kvilt/attention/gpu/score_rows.cuh>

namespace kvilt::inline KVILT_ABI::detail {

/// One of the warps that load tiles, each a stretch of every tile's tokens, and need not know of each other. It finds out
/// where a token lies a tile ahead, one a lane; asks for codes when there is room; and publishes them when they are there:
/// then they are 16-bit numbers.
template <class Task, int DimStep>
class group_loader : group_tiles<Task, DimStep> {
  using base = group_tiles<Task, DimStep>;
  using u32 = ptx::u32;
  using u64 = std::uint64_t;
  using base::bytes, base::tokens, base::of_loader, base::all, base::task_, base::notes_, base::seen_, base::run_,
      base::tiles_, base::lane;
  using place_in_ring = typename base::place_in_ring;

  /// What is known of a tile's tokens, of the lane's but for `alive`; where their codes lie is noted.
  struct tokens_ahead {
    params_word k_params, v_params;
    int position = 0;
    int page = 0, row = 0;
    bool in_boxes = false;  // follow tokens each other by as many as a box has?
    u32 alive = 0;          // bit i: of lane i
    __device__ bool all_alive() const { return alive == (2u << (of_loader - 1)) - 1; }
  };

 public:
  using maps_type = box_maps<Task::view_type::segments>;

  __device__ group_loader(const Task& task, const maps_type& maps, unsigned char* memory)
      : base(task, memory), maps_(maps), loader_(int(threadIdx.x) / 32 - group_bytes::warps) {}

  /// Loads for all rows that `work` gives: to one thread, `first` and `head` of an item.
  template <class Work>
  __device__ void run(Work work) {
    for (;; ++this->blocks_) {
      const int which = int(this->blocks_ % 2);
      auto& b = this->block();
      ptx::wait_until_over(this->done(which), this->blocks_ / 2 + 1);
      if (loader_ == 0 && lane() == 0) b.count = work.next(b.n, b.rows, b.head, b.first);
      ptx::sync(base::loaders, 32 * group_bytes::loaders);
      constexpr int of_each = group_bytes::rows / group_bytes::loaders;
      const int mine = min(max(b.count - of_each * loader_, 0), of_each);
      int_range seen{0x7fffffff, 0};
      if (mine > 0) seen = seen_by_rows(task_, b.rows, b.head, b.first + of_each * loader_, mine);
      if (lane() == 0) b.seen[loader_] = seen;
      __syncwarp();
      if (lane() == 0) ptx::arrive(this->given(which));
      if (b.count == 0) return;
      ptx::sync(base::loaders, 32 * group_bytes::loaders);
      rows_ = b.rows, head_ = b.head, first_ = b.first, count_ = b.count;
      prefetch_queries();
      segment_ = 0;
      task_.view.each([&](const auto& seg) {
        load(seg);
        ++segment_;
      });
    }
  }

 private:
  /// Brings the rows' queries nearer, one a lane.
  __device__ void prefetch_queries() const {
    const int row = 32 * loader_ + lane();
    if (row >= count_) return;
    const auto* const from = reinterpret_cast<const unsigned char*>(query_of(task_, rows_, head_, first_ + row));
    const int size = task_.view.k_dim() * int(sizeof(typename Task::query_type));
    for (int i = 0; i < size; i += 128) ptx::prefetch(from + i);
  }
  template <class Segment>
  __device__ void load(const Segment& seg) {
    if (!this->begin(seg)) return;
    if constexpr (base::turns_queries) ptx::wait_until_over(this->ready(), segments_++);
    whole_until_ = 0;
    k_codes_ = head_of(seg.planes.k_codes), v_codes_ = head_of(seg.planes.v_codes);
    const u32 begin = asked_, end = begin + 2 * u32(tiles_);
    tokens_ahead now = look(seg, 0);
    for (;;) {
      // NOTE: where there is no room, all that was asked for is published: those that are to make room may be waiting for it.
      const u32 empty = this->empty(ask_.slot), phase = ask_.phase ^ 1;
      const bool more = asked_ != end, room = more && __all_sync(all, ptx::is_over(empty, phase));
      publish_all_but(seg, room ? group_bytes::on_way : 0);
      if (!more) break;
      if (!room) ptx::wait_until_over(empty, phase), __syncwarp();
      const int tile = int(asked_ - begin) / 2;
      if (asked_ % 2 == 0) {
        note(seg, tile, now);
        ask<true>(seg, now);
      } else {
        ask<false>(seg, now);
        now = look(seg, tile + 1);
      }
    }
  }

  template <class Segment, bool Keys>
  struct entry {
    using tile = prefill_tile<Segment, DimStep>;
    using codes = std::conditional_t<Keys, typename tile::k, typename tile::v>;
    static constexpr bool widens = Keys ? tile::wide::widens_k : tile::wide::widens_v;
    static constexpr int chunks = widens ? codes::pitch / 16 : 2 * (Keys ? tile::k_steps : tile::v_steps);
    __device__ static u32 chunk(int row, int c) {
      return widens ? chunk_at<codes::pitch>(row, c) : panel_chunk<tokens>(row, c);
    }
    __device__ static u32 below(u32 chunk, int more) {
      return widens ? kvilt::detail::below<codes::pitch>(chunk, more) : panel_chunk_below(chunk, more);
    }
  };

  /// Finds out where a tile's tokens lie.
  template <class Segment>
  __device__ tokens_ahead look(const Segment& seg, int tile) const {
    tokens_ahead found;
    const int i = run_.first + tile * tokens + loader_ * of_loader + lane();
    bool alive = false;
    place p;
    idx slot = 0;
    if (lane() < of_loader && i < run_.last) {
      const kept_row kept = seg.retention.at(this->block().n, rows_.sequence, head_, i);
      found.position = int(kept.position);
      alive = found.position >= seen_.first && found.position < seen_.last;
      if (alive) p = seg.layout.locate(rows_.sequence, head_, kept.slot);
      slot = kept.slot;
    }
    found.alive = __ballot_sync(all, alive);
    found.page = int(p.page), found.row = p.row;
    if constexpr (copied_in_boxes<Segment>()) {
      const int in_box = lane() % box_rows;
      const idx begin = __shfl_sync(all, slot, lane() - in_box);
      const bool follows = slot == begin + in_box && (in_box > 0 || p.run >= box_rows);
      found.in_boxes = __all_sync(all, follows || lane() >= of_loader) && found.all_alive() && maps_.there[segment_];
    }
    if (alive) {
      if constexpr (params_of_records<typename Segment::k_format>())
        found.k_params = read_params(head_of(seg.planes.k_params) + distance(seg.planes.k_params, p));
      if constexpr (params_of_records<typename Segment::v_format>())
        found.v_params = read_params(head_of(seg.planes.v_params) + distance(seg.planes.v_params, p));
    }
    return found;
  }
  /// Number of the lane's token in a tile.
  __device__ int mine() const { return loader_ * of_loader + lane(); }
  __device__ const unsigned char* head_of(const plane& p) const {
    return p.base + u64(u32(head_)) * u32(p.head_stride);
  }
  __device__ static params_word read_params(const unsigned char* from) {
    const auto at = reinterpret_cast<std::uintptr_t>(from);
    return {*reinterpret_cast<const u32*>(at & ~std::uintptr_t(3)), (at & 2) != 0};
  }

  /// Says what there is to say of a tile's tokens before they are there.
  template <class Segment>
  __device__ void note(const Segment& seg, int tile, const tokens_ahead& now) {
    auto& notes = this->notes_of(noted_ % group_bytes::notes_slots);
    const bool whole = is_whole(seg, tile, now);
    if (lane() < of_loader) {
      notes.positions[mine()] = now.position;
      prepare_numbers<DimStep>(seg, head_, now.k_params, now.v_params,
                               [&](int kind, float x) { notes.numbers[kind][mine()] = x; });
    }
    if (lane() == 0) notes.alive[loader_] = now.alive, notes.dropped[loader_] = 0, notes.whole[loader_] = whole;
    whole_ = whole_ << 1 | u32(whole);
    ++noted_;
    by_boxes_ = now.in_boxes && whole && published_ == asked_;
    if (!by_boxes_ && lane() < of_loader) {
      place p;
      p.page = now.page, p.row = now.row;
      notes_.k_codes[mine()] = k_codes_ + distance(seg.planes.k_codes, p);
      notes_.v_codes[mine()] = v_codes_ + distance(seg.planes.v_codes, p);
    }
    __syncwarp();
  }

  /// Do all of the block's rows see all of this warp's tokens of a tile? NOTE: where positions go by ones, tiles are asked
  /// about together: what is seen of many is seen of each. It is mostly all of them, or all but the last.
  template <class Segment>
  __device__ bool is_whole(const Segment& seg, int tile, const tokens_ahead& now) {
    if constexpr (goes_by_ones<typename Segment::retention_type>()) {
      if (tile < whole_until_) return true;
      const idx first = __shfl_sync(all, now.position, 0) - idx(loader_ * of_loader);
      const int left = (run_.last - run_.first) / tokens - tile;  // tiles of which every token is there
      const auto see = [&](int n) { return all_rows_see(seg, {first, first + idx(n) * tokens}); };
      int seen = left > 0 && see(left) ? left : left > 1 && see(left - 1) ? left - 1 : 0;
      if (seen == 0)
        for (int n = 1; n < left && see(n); n *= 2) seen = n;
      whole_until_ = tile + seen;
      return seen > 0;
    } else {
      if (!Segment::retention_type::ordered || !now.all_alive()) return false;
      return all_rows_see(seg,
                          {__shfl_sync(all, now.position, 0), idx(__shfl_sync(all, now.position, of_loader - 1)) + 1});
    }
  }
  template <class Segment>
  __device__ bool all_rows_see(const Segment& seg, position_range range) const {
    bool whole = true;
    for (int row = lane(); row < count_; row += 32)
      whole = whole && sees_all(task_, seg, where_of(task_, rows_, head_, first_ + row), range);
    return __all_sync(all, whole);
  }

  /// Asks for the codes of this warp's tokens.
  template <bool Keys, class Segment>
  __device__ void ask(const Segment& seg, const tokens_ahead& now) {
    using e = entry<Segment, Keys>;
    if constexpr (copied_in_boxes<Segment>())
      if (by_boxes_) return ask_boxes<Keys, Segment>(now);
    const u32 to = e::widens ? raw_at(asked_) : this->slot_at(ask_.slot);
    const unsigned char* const* const codes = (Keys ? notes_.k_codes : notes_.v_codes) + loader_ * of_loader;
    const int row_bytes = Keys ? tile_row_bytes(seg.k) : tile_row_bytes(seg.v);
    if (now.all_alive() && row_bytes == 16 * e::chunks) {
      copy_rows<e>(to, codes);
    } else {
#pragma unroll 1
      for (int i = lane(); i < of_loader * e::chunks; i += 32) {
        const int row = i / e::chunks, chunk = i % e::chunks,
                  left = (now.alive >> row & 1) ? row_bytes - 16 * chunk : 0;
        ptx::copy_async_shared(to + e::chunk(loader_ * of_loader + row, chunk),
                               codes[row] + (left > 0 ? 16 * chunk : 0),
                               u32(left < 0    ? 0
                                   : left > 16 ? 16
                                               : left));
      }
    }
    ptx::commit_copies();
    // Where nothing is to be done to it, it publishes itself.
    if (!e::tile::wide::widens_k && !e::tile::wide::widens_v && (whole_ & 1) && published_ == asked_) {
      ptx::arrive_with_copies(this->full(ask_.slot));
      ++published_, publish_.advance(1);
    }
    ++asked_;
    ask_.advance(1);
  }
  /// The same as boxes, which publish themselves.
  template <bool Keys, class Segment>
  __device__ void ask_boxes(const tokens_ahead& now) {
    using e = entry<Segment, Keys>;
    constexpr int panels = (e::chunks + 7) / 8, boxes = of_loader / box_rows;
    static_assert(panels * boxes <= 32);
    const u32 full = this->full(ask_.slot);
    const int box = lane() % boxes, panel = lane() / boxes;
    const int row = __shfl_sync(all, now.row, box * box_rows), page = __shfl_sync(all, now.page, box * box_rows);
    if (lane() == 0)
      ptx::arrive_expecting(full, panels * of_loader * group_bytes::panel_row);
    else
      ptx::arrive(full);
    __syncwarp();
    if (panel < panels)
      ptx::copy_box(this->slot_at(ask_.slot) + panel_chunk<tokens>(loader_ * of_loader + box * box_rows, panel * 8),
                    Keys ? &maps_.k[segment_] : &maps_.v[segment_],
                    {panel * group_bytes::panel_numbers, row, head_, page}, full);
    ++asked_, ++published_;
    ask_.advance(1), publish_.advance(1);
  }

  /// All chunks of the warp's rows, whose codes lie at `codes`. NOTE: where they lie is read for some at once, since all
  /// accesses keep their order.
  template <class Entry>
  __device__ void copy_rows(u32 to, const unsigned char* const* codes) const {
    constexpr int fit = 32 / Entry::chunks, rows_at_once = fit >= 8 ? 8 : fit >= 4 ? 4 : fit >= 2 ? 2 : fit;
    constexpr int count = of_loader / rows_at_once;
    constexpr int batch = count % 8 == 0 ? 8 : count;
    const int row = lane() / Entry::chunks, chunk = lane() % Entry::chunks;
    if (row >= rows_at_once) return;
    const u32 first = to + Entry::chunk(loader_ * of_loader + row, chunk);
#pragma unroll
    for (int k = 0; k < count; k += batch) {
      const unsigned char* from[batch];
#pragma unroll
      for (int i = 0; i < batch; ++i) from[i] = codes[row + (k + i) * rows_at_once] + 16 * chunk;
#pragma unroll
      for (int i = 0; i < batch; ++i) ptx::copy_async_shared(Entry::below(first, (k + i) * rows_at_once), from[i]);
    }
  }

  /// Publishes what was asked for, in its order, but for the last `left` entries.
  template <class Segment>
  __device__ void publish_all_but(const Segment& seg, u32 left) {
    while (asked_ - published_ > left) {
      const u32 later = asked_ - published_ - 1;
      if (published_ % 2 == 0) {
        const bool whole = whole_ >> (noted_ - published_ / 2 - 1) & 1;
        // NOTE: of a tile that some row does not see all of, keys come after values were looked at.
        if (!whole && later == 0) return;
        wait_for_all_but(whole ? later : later - 1);
        if (!whole) drop_values(seg);
        publish<true>(seg);
      } else {
        wait_for_all_but(later);
        publish<false>(seg);
      }
    }
  }
  __device__ static void wait_for_all_but(u32 groups) {
    if (groups == 0)
      ptx::wait_copies<0>();
    else if (groups == 1)
      ptx::wait_copies<1>();
    else
      ptx::wait_copies<2>();
    __syncwarp();
  }
  template <bool Keys, class Segment>
  __device__ void publish(const Segment&) {
    using e = entry<Segment, Keys>;
    if constexpr (e::widens) widen<Segment, Keys>(raw_at(published_), this->slot_at(publish_.slot));
    __syncwarp();
    ptx::arrive(this->full(publish_.slot));
    ++published_;
    publish_.advance(1);
  }
  /// Codes as the 16-bit numbers that they stand for, in their order.
  template <class Segment, bool Keys>
  __device__ void widen(u32 from, u32 to) const {
    using e = entry<Segment, Keys>;
    using codes = typename e::codes;
    constexpr int spread = codes::spread, of_row = (codes::dim * bits_of(codes::kind()) + 127) / 128;
    constexpr int numbers = 2 * (Keys ? e::tile::k_steps : e::tile::v_steps);
#pragma unroll 2
    for (int i = lane(); i < of_loader * of_row; i += 32) {
      const int row = loader_ * of_loader + i / of_row, chunk = i % of_row;
      u32 pairs[4 * spread];
      unpack_in_order<codes::kind(), e::tile::template centre<codes>>(ptx::load_shared_16(from + e::chunk(row, chunk)),
                                                                      pairs);
#pragma unroll
      for (int s = 0; s < spread; ++s)
        if (chunk * spread + s < numbers)
          ptx::store_shared_16(to + panel_chunk<tokens>(row, chunk * spread + s),
                               {pairs[4 * s], pairs[4 * s + 1], pairs[4 * s + 2], pairs[4 * s + 3]});
    }
  }

  /// Of a tile that some row does not see all of, values that are not finite become zero: 0 x NaN is NaN. They are those of
  /// the entry after the one that is to be published.
  template <class Segment>
  __device__ void drop_values(const Segment&) {
    using e = entry<Segment, false>;
    constexpr code_kind kind = e::codes::kind();
    if constexpr (kind != code_kind::u8 && kind != code_kind::u4) {
      place_in_ring next = publish_;
      next.advance(1);
      const u32 values = e::widens ? raw_at(published_ + 1) : this->slot_at(next.slot);
      const int row = loader_ * of_loader + lane();
      bool finite = true;
      if (lane() < of_loader)
        for (int chunk = 0; chunk < e::chunks; ++chunk)
          finite = finite && is_finite<kind>(ptx::load_shared_16(values + e::chunk(row, chunk)));
      if (!finite)
        for (int chunk = 0; chunk < e::chunks; ++chunk) ptx::store_shared_16(values + e::chunk(row, chunk), {});
      const u32 dropped = __ballot_sync(all, !finite);
      if (lane() == 0) this->notes_of(published_ / 2 % group_bytes::notes_slots).dropped[loader_] = dropped;
    }
  }
  __device__ u32 raw_at(u32 number) const {
    return this->address(bytes.raw_at() + int(number % u32(group_bytes::raw_slots)) * bytes.raw_slot());
  }

  const maps_type& maps_;
  int loader_, segment_ = 0;
  item_rows rows_;
  int head_ = 0, first_ = 0, count_ = 0;
  const unsigned char *k_codes_ = nullptr, *v_codes_ = nullptr;  // of a segment's head
  place_in_ring ask_, publish_;
  u32 asked_ = 0, published_ = 0;  // entries
  u32 noted_ = 0, whole_ = 0;      // tiles; bit i: all rows see all of the warp's tokens of the tile i before the last
  bool by_boxes_ = false;          // is the tile that is asked for copied so?
  int whole_until_ = 0;            // all rows see all of the segment's tiles that come before
  [[maybe_unused]] u32 segments_ = 0;
};

}  // namespace kvilt::inline KVILT_ABI::detail
