#pragma once

#include <kvilt/attention/gpu/tile_copies.cuh>
#include <kvilt/gpu/gpu.cuh>

namespace kvilt::inline KVILT_ABI::detail {

/// Where a loader is on the line: in shared memory, since registers are what attention is short of.
struct alignas(16) loader_state {
  unit_seat seat;
  int left = 0;  // steps of the share beyond the unit
  // Rows [plain_first, plain_last) are there and may be seen, at slots and positions that differ from their number by
  // these; so do those of all rows before `known_last`.
  int slot = 0, position = 0, plain_first = 0, plain_last = 0;
  int known_last = 0;
  int count = 0;   // rows of the segment
  int_range seen;  // positions that the unit's rows may see
  int sequence = 0;
  int segment = 0, segment_first = 0;  // its first step among the unit's
  bool begun = false;                  // a unit
  bool shown = false;                  // some of its keys
};
/// The unit's item, and the one after it, which is on its way before it is needed: when memory is busy with keys, an answer
/// takes as long as two steps.
struct alignas(16) loader_items {
  step_item item, ahead;
  int ahead_steps = 0;
};

/// Brings a warp's share of keys and values to its ring, tile by tile, ahead of their use, across segments and units.
///
/// Where a run's steps each lie in one page, a lane looks up a step's page, 32 steps at once and as many ahead; elsewhere,
/// one tile ahead, a token's.
template <class Task, int DimStep, int Rows, int Stages>
class key_loader {
 public:
  /// Rows [first_row, first_row + Rows) of every unit of the share. `own`: memory of the state.
  __device__ key_loader(const Task& task, const team_share& share, unsigned char* own, int head_of_team, int first_row)
      : task_(task),
        state_(*reinterpret_cast<loader_state*>(own)),
        items_(*reinterpret_cast<loader_items*>(own + sizeof(loader_state))),
        head_of_team_(head_of_team),
        first_row_(first_row) {
    // A share is a seat, a number of steps and an item, and so is what these are copied to.
    constexpr int seat_words = (sizeof(unit_seat) + sizeof(int)) / 4, item_words = sizeof(step_item) / 4;
    static_assert(offsetof(loader_state, left) == offsetof(team_share, steps));
    const ptx::u32* const from = reinterpret_cast<const ptx::u32*>(&share);
    const int i = lane();
    if (i < seat_words + (ahead ? item_words : 0))
      reinterpret_cast<ptx::u32*>(i < seat_words ? own : own + sizeof(loader_state) - 4 * seat_words)[i] = from[i];
    __syncwarp();
    if (i == 0) state_.segment = view_type::segments, state_.begun = false, skip_rows(state_.seat, share.item);
    __syncwarp();
  }

  /// Starts the copies of the next tile into `slot`, or says there that there is none, and finds out where the one after
  /// it lies: the first call does no more than that. Of what the kernel before may have written, only after a wait for
  /// it: `waited`.
  __device__ void issue(const ring_slot& slot, bool& waited) {
    if (row_ < row_end_) {
      visit_segment(task_.view, segment(), [&](const auto& seg) { load(seg, slot, waited); });
      begins_ = 0;
    } else if (lane() == 0) {
      tile_label().put(slot);
    }
    ++age_;
    if (row_ >= known_until_) {
      if (row_ >= row_end_) go_on();
      if (row_ < row_end_) look();
      known_until_ = min(row_end_, looked_last_);
    }
    ptx::commit_copies();
  }

 private:
  using view_type = typename Task::view_type;
  static constexpr int tokens = work_shape::tokens;
  static constexpr ptx::u32 all = 0xffffffffu;
  static constexpr warp_bytes memory = warp_bytes::of<view_type>(DimStep, Rows);
  static constexpr bool ahead = memory.state >= int(sizeof(loader_state) + sizeof(loader_items));
  static_assert(ahead || memory.state >= int(sizeof(loader_state)));

  __device__ static int lane() { return int(threadIdx.x) % 32; }
  __device__ int segment() const { return view_type::segments == 1 ? 0 : state_.segment; }

  /// To the next run of steps that may be seen. A unit without any has one step without tokens, so that someone writes its
  /// result. Where the share ends, `row_` is not below `row_end_`.
  __device__ void go_on() {
    row_ = row_end_ = 0;
    loader_state s = state_;
    bool found = false;
    while (!found) {
      if (s.segment + 1 >= view_type::segments) {
        if (s.begun && s.left == 0) break;
        if (s.begun)
          next_seat(s);
        else if (ahead)
          look_ahead_at(s.seat.item + 1);
        s.begun = true;
        s.left -= s.seat.end - s.seat.step;
        s.segment = view_type::segments;
        const int rows = s.seat.rows_from(first_row_, Rows);
        if (rows == 0) continue;
        sit(s, rows);
      }
      ++s.segment;
      visit_segment(task_.view, s.segment, [&](const auto& seg) { found = begin_run(seg, s); });
    }
    set(s);
  }
  __device__ void set(const loader_state& s) {
    __syncwarp();
    if (lane() == 0) state_ = s;
    __syncwarp();
  }
  __device__ const step_item& item_of(const loader_state& s) const {
    if constexpr (ahead)
      return items_.item;
    else
      return task_.items[s.seat.item];
  }
  /// To the unit after this one on the line.
  __device__ void next_seat(loader_state& s) {
    const work_shape& shape = task_.work.shape;
    s.seat.first_row += shape.rows;
    if (s.seat.first_row >= item_of(s).queries * shape.group.value()) {
      s.seat.first_row = 0;
      s.seat.head += shape.heads;
      if (s.seat.head >= shape.kv_heads) {
        s.seat.head = 0;
        do next_item(s);
        while (!shape.has(item_of(s).queries));
      }
    }
    s.seat.rows = unit_rows(shape, item_of(s).queries, s.seat.first_row);
    skip_rows(s.seat, item_of(s));
    s.seat.step = 0;
    s.seat.end = min(s.seat.steps, s.left);
  }
  /// To the first row that the task asks for, where it does not ask for all.
  __device__ void skip_rows(unit_seat& seat, const step_item& item) const {
    if constexpr (requires { task_.first_row(item); }) {
      seat.first_row = task_.first_row(item);
      seat.rows = unit_rows(task_.work.shape, item.queries, seat.first_row);
    }
  }
  __device__ void next_item(loader_state& s) {
    ++s.seat.item;
    if constexpr (ahead) {
      // NOTE: whoever takes tiles has waited for the copies of all calls but the last `Stages`, once the ring is full.
      if (age_ <= Stages) ptx::wait_all_copies();
      __syncwarp();
      constexpr int words = sizeof(step_item) / 4;
      if (lane() < words)
        reinterpret_cast<ptx::u32*>(&items_.item)[lane()] = reinterpret_cast<const ptx::u32*>(&items_.ahead)[lane()];
      s.seat.steps = items_.ahead_steps;
      __syncwarp();
      look_ahead_at(s.seat.item + 1);
    } else {
      s.seat.steps = task_.work.steps[s.seat.item];
    }
  }
  /// Starts the copies of what there is to know of an item.
  __device__ void look_ahead_at(int item) {
    constexpr int chunks = sizeof(step_item) / 16;
    if (item < task_.size) {
      if (lane() < chunks)
        ptx::copy_async(ptx::shared_address(&items_.ahead) + 16u * ptx::u32(lane()),
                        reinterpret_cast<const unsigned char*>(task_.items + item) + 16 * lane());
      if (lane() == chunks)
        ptx::copy_word_async(ptx::shared_address(&items_.ahead_steps), task_.work.steps + item, true);
    }
    age_ = 0;
  }
  /// Begins a unit.
  __device__ void sit(loader_state& s, int rows) {
    const step_item& item = item_of(s);
    s.seen = seen_by_rows(task_, rows_of(item), s.seat.head + head_of_team_, s.seat.first_row + first_row_, rows);
    s.sequence = item.sequence;
    s.segment = -1;
    s.segment_first = 0;
    s.shown = false;
    // NOTE: of a sequence to which another item appends nothing is said here.
    fresh_ = item.new_tokens > 0 ? int(smaller(item.n.before, item.n.body_before)) : 0;
  }
  /// Begins the run of what this share has of a segment, if it may be seen. NOTE: what is outside of `seen` is not read
  /// where positions go up by one from row to row, as in every interval; elsewhere it is hidden.
  template <class Segment>
  __device__ bool begin_run(const Segment& seg, loader_state& s) {
    const lengths n = item_of(s).n;
    const int head = s.seat.head + head_of_team_;
    s.count = int(seg.retention.count(n, s.sequence, head));
    int_range run;
    int skipped = 0;
    if (s.count > 0) {
      const kept_row oldest = seg.retention.at(n, s.sequence, head, 0);
      skipped = int(oldest.slot % tokens);
      know(s, oldest, 0);
      int_range visible{0, s.count};
      if constexpr (goes_by_ones<typename Segment::retention_type>()) {
        visible.first = max(s.seen.first - int(oldest.position), 0);
        visible.last = min(s.seen.last - int(oldest.position), s.count);
      }
      const int before = s.segment_first;
      if (visible.first < visible.last)
        run = {max((skipped + visible.first) / tokens, s.seat.step - before),
               min((skipped + visible.last + tokens - 1) / tokens, s.seat.end - before)};
    }
    if constexpr (view_type::segments > 1)
      s.segment_first += segment_steps(seg, n, s.sequence, task_.work.shape.kv_heads);
    if (run.first >= run.last) {
      if (s.shown || s.segment + 1 < view_type::segments) return false;
      run = {0, 1};
      skipped = s.count = s.plain_first = s.plain_last = 0;
      s.known_last = tokens;
    }
    begins_ = tile_label::begins_run | (s.shown ? 0 : tile_label::begins_unit);
    s.shown = true;
    by_token_ = false;
    row_ = run.first * tokens - skipped;
    row_end_ = run.last * tokens - skipped;
    looked_last_ = ahead_last_ = row_;
    if constexpr (Rows == 8) copies_.begin(seg, head);
    return true;
  }
  /// Of what begins with row `first`: how far rows follow each other.
  __device__ static void know(loader_state& s, const kept_row& kept, int first) {
    s.slot = int(kept.slot) - first;
    s.position = int(kept.position) - first;
    s.known_last = first + int(smaller(kept.run, s.count - first));
    s.plain_first = max(first, s.seen.first - s.position);
    s.plain_last = int(smaller(s.known_last, idx(s.seen.last) - s.position));
  }

  /// Looks up where the next tile lies, if that is not known. Not waited for until `load` needs it.
  __device__ void look() {
    if (row_ < looked_last_) return;
    visit_segment(task_.view, segment(), [&](const auto& seg) {
      if (row_ >= state_.known_last) {
        loader_state s = state_;
        const int first = max(row_, 0);
        know(s, seg.retention.at(item_of(s).n, s.sequence, s.seat.head + head_of_team_, first), first);
        set(s);
        looked_last_ = ahead_last_ = row_;
        by_token_ = false;
      }
      // Where a run begins, twice: the first turn finds what the second takes over.
      while (!by_token_ && row_ >= looked_last_) {
        page_ = ahead_page_, row_in_page_ = ahead_row_;
        looked_first_ = looked_last_, looked_last_ = ahead_last_;
        ahead_last_ = look_ahead(seg);
        by_token_ = row_ >= ahead_last_;
      }
      if (by_token_) look_at_tokens(seg);
    });
  }
  /// Of the 32 steps after those that are known, one a lane: how far they go, as far as each is in one page and one run.
  template <class Segment>
  __device__ int look_ahead(const Segment& seg) {
    constexpr int min_run = std::remove_cvref_t<decltype(seg.layout)>::min_run;
    const int from = ahead_last_;
    const loader_state& s = state_;
    if ((min_run > 1 && min_run % tokens != 0) || from >= row_end_ || from >= s.known_last) return from;
    const int i = from + tokens * lane(), first = max(i, s.plain_first), last = min(i + tokens, s.plain_last);
    bool apart = i < s.known_last && s.known_last < min(i + tokens, s.count);
    if (first < last) {
      const place p = seg.layout.locate(s.sequence, s.seat.head + head_of_team_, first + s.slot);
      ahead_page_ = int(p.page);
      ahead_row_ = p.row - (first - i);
      apart = apart || p.run < last - first;
    }
    const ptx::u32 where_apart = __ballot_sync(all, apart);
    return where_apart ? from + tokens * (__ffs(int(where_apart)) - 1) : min(from + 32 * tokens, s.known_last);
  }
  /// Of the next tile's tokens, one a lane.
  template <class Segment>
  __device__ void look_at_tokens(const Segment& seg) {
    constexpr int of_tile = device_tile<Segment>::tokens(DimStep, Rows);
    const int last = min(row_ + of_tile, row_end_), i = row_ + lane() % of_tile;
    looked_last_ = last;
    const loader_state& s = state_;
    page_ = -1;
    together_ = false;
    position_ = i + s.position;
    int slot = i + s.slot, run = s.known_last - i;
    if (row_ < s.plain_first || last > s.plain_last || i >= last) {
      if (i < 0 || i >= min(s.count, last)) return;
      if (i >= s.known_last) {
        const kept_row kept = seg.retention.at(item_of(s).n, s.sequence, s.seat.head + head_of_team_, i);
        slot = int(kept.slot);
        position_ = int(kept.position);
        run = int(smaller(kept.run, s.count - i));
      }
      if (position_ < s.seen.first || position_ >= s.seen.last) return;
    }
    const place p = seg.layout.locate(s.sequence, s.seat.head + head_of_team_, slot);
    page_ = int(p.page);
    row_in_page_ = p.row;
    together_ = min(p.run, run) >= tokens;
  }

  template <class Segment>
  __device__ void load(const Segment& seg, const ring_slot& slot, bool& waited) {
    using tile = device_tile<Segment>;
    constexpr int of_tile = tile::tokens(DimStep, Rows);
    const loader_state& s = state_;
    const int token = lane() % of_tile;
    const int count = min(of_tile, min(row_end_, round_up_to_step(looked_last_)) - row_);
    const int step = (row_ - looked_first_) / tokens;
    ptx::u32 alive = 0, together = all;
    int row = row_in_page_, position = position_;  // of this lane's token
    const int page = __shfl_sync(all, page_, by_token_ ? token : step + token / tokens);
    if (by_token_) {
      alive = __ballot_sync(all, page_ >= 0 && lane() < of_tile);
      together = __ballot_sync(all, together_);
      if (!waited && __any_sync(all, position_ >= fresh_)) end_early_reads(waited);
    } else {
      const int from = max(s.plain_first - row_, 0), to = min(s.plain_last - row_, count);
      if (from < to) alive = ((2u << (to - 1)) - 1) & ~0u << from;
      row = __shfl_sync(all, row_in_page_, step + token / tokens) + token % tokens;
      position = row_ + token + s.position;
      if (!waited && row_ + count - 1 + s.position >= fresh_) end_early_reads(waited);
    }
    if constexpr (Rows > 8) copies_.begin(seg, s.seat.head + head_of_team_);  // for want of registers
    const ptx::u32 keys = slot.codes, values = keys + (tile::k_codes ? of_tile * tile::k_pitch(DimStep) : 0);
    const ptx::u32 positions = slot.notes + tile_label::positions_at, params = positions + 4 * of_tile;
    tile_label label{tile_label::there | begins_ | ptx::u32(segment()) << tile_label::segment_shift, alive, 0, 0};
    if constexpr (tile::k_params || tile::v_params) {
      const bool there = alive >> token & 1;
      if constexpr (tile::k_params) label.k_upper = copies_.k_params(seg, params, page, row, there);
      if constexpr (tile::v_params) label.v_upper = copies_.v_params(seg, params + 4 * of_tile, page, row, there);
    }
    if constexpr (tile::k_codes || tile::v_codes) copies_.codes(seg, keys, values, page, row, alive, together);
    if (lane() < of_tile) ptx::store_shared_4(positions + 4u * ptx::u32(lane()), ptx::u32(position));
    if (begins_ & tile_label::begins_unit) begin_unit(slot, waited);
    if (lane() == 0) {
      label.put(slot);
      if constexpr (tile::numbered) ptx::store_shared_4(slot.notes + tile_label::row_at, ptx::u32(row_));
    }
    row_ += count;
  }
  /// The first row of a step that is not below `row`.
  __device__ int round_up_to_step(int row) const { return row_ + (row - row_ + tokens - 1) / tokens * tokens; }
  /// Says what unit begins with a tile, and brings its queries along, where they are there already and can be copied.
  __device__ void begin_unit(const ring_slot& slot, bool waited) const {
    const unit_seat seat = state_.seat;
    const int head = seat.head + head_of_team_, first = seat.first_row + first_row_;
    const int count = seat.rows_from(first_row_, Rows);
    const item_rows rows = rows_of(item_of(state_));
    bool has_queries = false;
    if constexpr (memory.queries > 0 && sizeof(typename Task::query_type) == 2) {
      has_queries = waited && in_eights(task_.q);
      if (has_queries) {
        const int chunks = task_.view.k_dim() / 8;
        constexpr int pitch = memory.queries / 8;
        for (int i = lane(); i < count * chunks; i += 32) {
          const int r = i / chunks, chunk = i - r * chunks;
          ptx::copy_async(slot.notes + memory.notes + ptx::u32(r * pitch + chunk * 16),
                          query_of(task_, rows, head, first + r) + 8 * chunk);
        }
      }
    }
    if (lane() == 0)
      unit_label{ptx::u32(seat.item),
                 (seat.step == 0 ? unit_label::opens : 0) | (seat.end == seat.steps ? unit_label::closes : 0) |
                     (has_queries ? unit_label::has_queries : 0) | ptx::u32(count) << unit_label::count_shift |
                     ptx::u32(head) << unit_label::head_shift,
                 first, rows}
          .put(slot);
  }

  const Task& task_;
  loader_state& state_;
  loader_items& items_;
  int head_of_team_, first_row_;
  int fresh_ = 0;              // the first position that this step may write
  int row_ = 0, row_end_ = 0;  // of the segment: the next tile's first, before row 0 where it begins within the step
  // Of the first token of each of 32 steps, in a lane, and of the 32 after them; or of this lane's token of the next tile.
  int page_ = -1, row_in_page_ = 0, ahead_page_ = -1, ahead_row_ = 0;
  int looked_first_ = 0, looked_last_ = 0, ahead_last_ = 0;  // rows of which that is known
  int known_until_ = 0;                                      // until this row nothing need be looked up
  tile_copies<DimStep, Rows> copies_;
  ptx::u32 begins_ = 0;  // with the next tile
  int age_ = 0;          // calls since the next item was asked for
  bool by_token_ = false;
  // By tokens alone:
  int position_ = 0;
  bool together_ = false;  // all sixteen follow each other in their page
};

}  // namespace kvilt::inline KVILT_ABI::detail
