#pragma once

#include <kvilt/cache/append.hpp>

#include <cstring>
#include <type_traits>

namespace kvilt::inline KVILT_ABI {

/// Rows of one sequence that go from one view to another; its number in each is `cache::row`. What a view holds is said
/// by the lengths of a step that is over: `{n, n, n, n}` for n tokens without a 16-bit tail, or what `cache::holds` gives.
struct row_copy {
  int from = 0;  // the sequence in the source's tables
  lengths from_holds;
  int to = 0;             // the sequence in the target's tables
  lengths to_holds;       // once all is copied
  position_range tokens;  // which of its tokens
};

namespace detail {

/// K's half of a segment, and V's.
struct key_side {
  template <class Segment>
  static const auto& format(const Segment& seg) {
    return seg.k;
  }
  template <class Segment>
  static row_ref row(const Segment& seg, place p, int head) {
    return seg.k_row(p, head);
  }
  template <class View>
  using rotation = typename View::k_rotation;
};
struct value_side {
  template <class Segment>
  static const auto& format(const Segment& seg) {
    return seg.v;
  }
  template <class Segment>
  static row_ref row(const Segment& seg, place p, int head) {
    return seg.v_row(p, head);
  }
  template <class View>
  using rotation = typename View::v_rotation;
};

/// Copies the rows of one KV head.
template <class From, class To>
struct row_copier {
  const From& from;
  const To& to;
  const row_copy& what;
  int head;
  float* scratch;  // [64][k_dim + v_dim]

  void run() const {
    to.each([&](const auto& target) {
      side<key_side>(target);
      if constexpr (!To::values_in_keys) side<value_side>(target);
    });
  }

 private:
  template <class Side, class Target>
  void side(const Target& target) const {
    constexpr int rows = std::remove_cvref_t<decltype(Side::format(target))>::rows;
    for (idx first = what.tokens.first; first < what.tokens.last; ++first) {
      const idx slot = target.retention.slot(what.to_holds, what.to, head, first);
      if (slot < 0 || slot % rows != 0) continue;
      const place p = target.layout.locate(what.to, head, slot);
      if (p.page >= 0) record<Side>(target, Side::row(target, p, head), first);
    }
  }

  /// One record of the target, which begins with token `first`.
  template <class Side, class Target>
  void record(const Target& target, row_ref put, idx first) const {
    const auto& format = Side::format(target);
    constexpr int rows = std::remove_cvref_t<decltype(format)>::rows;
    const int dim = format.dim();
    bool copied = false;
    for (int i = 0; i < rows && !copied; ++i)
      from.each([&](const auto& source) {
        const idx slot = source.retention.slot(what.from_holds, what.from, head, first + i);
        if (slot < 0) return;
        const place p = source.layout.locate(what.from, head, slot);
        if (p.page < 0) return;
        const row_ref get = Side::row(source, p, head);
        copied = i == 0 && holds_record<rows>(source, first) && copy_bytes(Side::format(source), get, format, put);
        if (copied) return;
        float* const x = scratch + idx(i) * dim;
        decode_row(Side::format(source), get, x);
        turn<typename Side::template rotation<From>, typename Side::template rotation<To>>(x, dim);
      });
    if (!copied) format.encode(scratch, put);
  }

  /// Do the `Rows` tokens from `first` on make up a record of that many rows in this segment?
  template <int Rows, class Source>
  bool holds_record(const Source& source, idx first) const {
    const idx slot = source.retention.slot(what.from_holds, what.from, head, first);
    const idx last = source.retention.slot(what.from_holds, what.from, head, first + Rows - 1);
    return slot % Rows == 0 && last == slot + Rows - 1;
  }

  /// Copies a record as it is, if both formats write the same; false if they do not.
  template <class Source, class Target>
  static bool copy_bytes(const Source& source, row_ref get, const Target& target, row_ref put) {
    if constexpr (std::is_same_v<Source, Target>) {
      if (!writes_like(source, target)) return false;
      if constexpr (has_static_scale<Source>)
        if (read<float>(get.params) != read<float>(put.params)) return false;
      std::memcpy(put.codes, get.codes, std::size_t(source.code_bytes()));
      if (source.param_bytes() > 0) std::memcpy(put.params, get.params, std::size_t(source.param_bytes()));
      return true;
    }
    return false;
  }

  template <class Now, class Wanted>
  static void turn(float* x, int dim) {
    if constexpr (!std::is_same_v<Now, Wanted>) {
      Now::inverse(x, dim);
      Wanted::forward(x, dim);
    }
  }
};

/// In which segment's slot a token lies, -1 if in none.
template <class View>
idx slot_in(const View& view, const lengths& n, int sequence, int head, idx position) {
  idx found = -1;
  view.each([&](const auto& seg) { found = larger(found, seg.retention.slot(n, sequence, head, position)); });
  return found;
}

/// Whether a token's row is there to be read.
template <class View>
bool has_row(const View& view, const lengths& n, int sequence, int head, idx position) {
  bool found = false;
  view.each([&](const auto& seg) {
    const idx slot = seg.retention.slot(n, sequence, head, position);
    found |= slot >= 0 && seg.layout.locate(sequence, head, slot).page >= 0;
  });
  return found;
}

template <class View>
void check_held(const View& view, const char* which, int sequence, const lengths& n, position_range tokens) {
  expects(sequence >= 0, which, " sequence ", sequence, " is negative");
  expects(n.before >= 0 && n.before <= n.after && n.body_before >= 0 && n.body_before <= n.body_after, which,
          " sequence ", sequence, " goes from ", n.before, " to ", n.after, " tokens and from ", n.body_before, " to ",
          n.body_after, " in its body");
  const step_item item{sequence, 0, 0, 0, 0, n};
  const int heads = view.kv_heads();
  view.each([&](const auto& seg) {
    check_item_capacity(seg, item, heads);
    if constexpr (KVILT_IS_CHECKED)
      for (int head = 0; head < heads; ++head) check_rows(seg, item, head, tokens);
  });
}

/// The target gets whole tiles.
template <class Segment>
void check_whole_tiles(const Segment& seg, const row_copy& c, int head) {
  constexpr int tile =
      Segment::k_format::rows > Segment::v_format::rows ? Segment::k_format::rows : Segment::v_format::rows;
  static_assert(tile % Segment::k_format::rows == 0 && tile % Segment::v_format::rows == 0 && tile <= host_tile::tokens,
                "kvilt: tiles of K and V must divide each other and have at most 64 rows");
  if constexpr (tile > 1) {
    idx got = 0;
    for (idx t = c.tokens.first; t < c.tokens.last; ++t) {
      const idx slot = seg.retention.slot(c.to_holds, c.to, head, t);
      if (slot < 0) continue;
      expects(got % tile == slot % tile, "sequence ", c.to, " gets token ", t, " without the others of its tile of ",
              tile);
      ++got;
    }
    expects(got % tile == 0, "sequence ", c.to, " gets tokens up to ", c.tokens.last, ", inside a tile of ", tile);
  }
}

template <class From, class To>
void check_copy(const From& from, const To& to, const row_copy& c) {
  expects(c.tokens.first >= 0 && c.tokens.first <= c.tokens.last && c.tokens.last <= c.to_holds.after, "tokens ",
          c.tokens.first, " to ", c.tokens.last, " are copied to sequence ", c.to, ", which is to hold ",
          c.to_holds.after);
  check_held(from, "source", c.from, c.from_holds, c.tokens);
  check_held(to, "target", c.to, c.to_holds, c.tokens);
  for (int head = 0; head < to.kv_heads(); ++head) {
    for (idx t = c.tokens.first; t < c.tokens.last; ++t)
      expects(slot_in(to, c.to_holds, c.to, head, t) < 0 || has_row(from, c.from_holds, c.from, head, t), "sequence ",
              c.to, " keeps token ", t, ", which sequence ", c.from, " of the source does not hold");
    to.each([&](const auto& seg) { check_whole_tiles(seg, c, head); });
  }
}

}  // namespace detail

/// Copies rows between views of any layouts, retentions, formats and rotations: a 16-bit prefill pool into one of int4,
/// or a sequence into another pool of its kind. Of the tokens named, those go over that the target is to hold, each to
/// the segment in which it holds them; all of these must be in the source. Between equal formats (and equal static
/// scales) bytes are copied as they are; otherwise a row is decoded, turned from one rotation to the other, and encoded.
/// `workspace`: `workspace_bytes(exec, 0, k_dim, v_dim)` bytes. No two copies write the same rows, and none reads what
/// another writes. Throws `invalid_argument` before anything is written. Bits do not depend on the number of workers.
template <host_view From, host_view To>
void copy_rows(const host& exec, const From& from, const To& to, std::span<const row_copy> copies,
               std::span<unsigned char> workspace) {
  static_assert(!To::values_in_keys || From::values_in_keys,
                "kvilt: where V is a part of K's records it is copied from a view of the same kind");
  const int heads = to.kv_heads(), k_dim = to.k_dim(), v_dim = to.v_dim();
  detail::expects(from.kv_heads() == heads && from.k_dim() == k_dim && from.v_dim() == v_dim, "rows of ",
                  from.kv_heads(), " KV heads of ", from.k_dim(), " and ", from.v_dim(), " numbers are copied to ",
                  heads, " of ", k_dim, " and ", v_dim);
  detail::check_view(from);
  detail::check_view(to);
  detail::check_records(to);
  step_item* none = nullptr;
  const step s = detail::place_step(0, workspace, none);
  detail::check_scratch(exec, s, k_dim, v_dim);
  for (const row_copy& c : copies) detail::check_copy(from, to, c);
  exec.for_each(idx(copies.size()) * heads, [&](idx task, int worker) {
    const detail::row_copier<From, To> copier{from, to, copies[std::size_t(task / heads)], int(task % heads),
                                              detail::worker_scratch(s, worker, k_dim, v_dim)};
    copier.run();
  });
}

}  // namespace kvilt::inline KVILT_ABI
