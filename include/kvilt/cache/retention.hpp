#pragma once

#include <kvilt/core/math.hpp>
#include <kvilt/core/types.hpp>

#include <concepts>
#include <type_traits>

namespace kvilt::inline KVILT_ABI {

/// One kept row: the slot it lies in, the token's position in the text, and for how many rows from here on slot and
/// position both go up by one.
struct kept_row {
  idx slot = 0;
  idx position = 0;
  idx run = 1;
};

/// A retention says which tokens of a sequence stay, in which slot, reporting which position, per (sequence, KV head).
///   `static constexpr bool ordered`    positions go up with the row number
///   `idx count(lengths, int sequence, int head) const`
///                                      live rows; every one is in bounds and written
///   `kept_row at(lengths, int sequence, int head, idx i) const`
///                                      i in [0, count)
///   `idx slot(lengths, int sequence, int head, idx position) const`
///                                      where the token is to be written, -1 if not here
///   `bool sees(idx q_position, idx k_position) const`
///                                      what the rule itself hides, e.g. keys left of a window
/// Optional:
///   `position_range leaving(lengths) const`, `idx slot_of(idx position) const`
///                                      tokens that this step moves from here to another segment, and where they lie
///   `idx sees_from(idx q_position) const`
///                                      every key from this position on is seen: `sees` need not be asked
///   `idx in_cache(idx q_position) const`
///                                      the query's position when keys are numbered by their place in the cache
///   `static constexpr bool has_gaps`   rows that follow on each other may be far from each other in the text
template <class R>
concept kv_retention = std::is_trivially_copyable_v<R> && requires(const R r, lengths n, int i, idx j) {
  { R::ordered } -> std::convertible_to<bool>;
  { r.count(n, i, i) } -> std::same_as<idx>;
  { r.at(n, i, i, j) } -> std::same_as<kept_row>;
  { r.slot(n, i, i, j) } -> std::same_as<idx>;
  { r.sees(j, j) } -> std::same_as<bool>;
};

/// Every token stays.
struct keep_all {
  static constexpr bool slides = false;
  static constexpr const char* name() { return "all"; }
  static constexpr idx width() { return 0; }
  static constexpr int sinks() { return 0; }
};

/// A query sees the last W tokens, itself included, and the first S (sinks; G. Xiao et al., "Efficient streaming
/// language models with attention sinks", 2023). Others' `window_left` is W - 1: see `window_from_left`.
template <int W = dynamic, int S = 0>
class window {
 public:
  static constexpr bool slides = true;
  static constexpr const char* name() { return S == 0 ? "window" : "window+sinks"; }

  constexpr window() = default;
  constexpr explicit window(int width) : width_(width) {}
  constexpr idx width() const { return width_.get(); }
  static constexpr int sinks() { return S; }

 private:
  extent<W> width_;
};

/// The first key that a window of `width` shows the query at `position`; negative where it shows them all.
KVILT_HD constexpr idx first_seen(idx position, idx width) {
  return position + 1 - width;
}

/// The window that sees `left` tokens before the query's own, as FlashAttention's and FlashInfer's `window_left` count
/// (-1 there is no window: `keep_all`). Hugging Face's `sliding_window`, llama.cpp's `n_swa` and TensorRT-LLM's
/// `max_attention_window` are widths as they stand.
constexpr window<> window_from_left(int left) {
  return window<>(left + 1);
}

/// Which part of a sequence a segment keeps.
enum class part : unsigned char {
  sinks,  // the first tokens
  body,   // what lies between, in the body's formats
  tail    // the newest tokens, still in 16 bit
};

/// Slots of one part: that of its first token, and how many are reused in turn (0: every token has its own).
struct slot_range {
  idx first = 0;
  idx reused = 0;
};

/// The rows of one part under one rule, in the order of their positions.
template <part Part, class Rule>
class interval {
 public:
  static constexpr bool ordered = true;
  static constexpr bool slides = Rule::slides && Part != part::sinks;

  constexpr interval() = default;
  /// `sinks`: tokens that belong to the sinks' part.
  constexpr explicit interval(const Rule& rule, idx sinks = 0, slot_range slots = {})
      : width_(rule.width()), sinks_(sinks), first_slot_(slots.first), capacity_(slots.reused) {}

  KVILT_HD constexpr idx count(lengths n, int, int) const {
    const position_range r = range(n);
    return larger(r.last - r.first, 0);
  }
  KVILT_HD constexpr kept_row at(lengths n, int, int, idx i) const {
    const position_range r = range(n);
    const idx slot = slot_of(r.first + i), end = capacity_ ? first_slot_ + capacity_ : slot + (r.last - r.first - i);
    return {slot, r.first + i, smaller(end - slot, r.last - r.first - i)};
  }
  KVILT_HD constexpr idx slot(lengths n, int, int, idx position) const {
    const position_range r = range(n);
    return position >= r.first && position < r.last ? slot_of(position) : -1;
  }
  KVILT_HD constexpr bool sees(idx q_position, idx k_position) const {
    if constexpr (slides)
      return k_position >= first_seen(q_position, width_);
    else
      return true;
  }
  KVILT_HD constexpr idx sees_from(idx q_position) const { return slides ? q_position + 1 - width_ : 0; }
  KVILT_HD constexpr position_range leaving(lengths n) const requires(Part == part::tail) {
    return {larger(sinks_, n.body_before), n.body_after};
  }
  KVILT_HD constexpr idx in_cache(idx q_position) const requires(Part == part::sinks && Rule::slides) {
    return smaller(q_position, sinks_ + width_ - 1);
  }
  /// The slot of a token that this part holds or has held and not yet reused.
  KVILT_HD constexpr idx slot_of(idx position) const {
    const idx nth = Part == part::sinks ? position : position - sinks_;
    return first_slot_ + (capacity_ ? remainder(nth, capacity_) : nth);
  }

 private:
  KVILT_HD constexpr position_range range(lengths n) const {
    if constexpr (Part == part::sinks) return {0, smaller(sinks_, n.after)};
    position_range r{sinks_, n.body_after};
    if constexpr (Part == part::tail) r = {larger(sinks_, n.body_after), n.after};
    // NOTE: the step's first query sees furthest back; older keys are dead for the whole step.
    if constexpr (Rule::slides) r.first = larger(r.first, first_seen(n.before, width_));
    return r;
  }

  idx width_ = Rule().width();
  idx sinks_ = 0;
  idx first_slot_ = 0;
  idx capacity_ = 0;
};

static_assert(kv_retention<interval<part::body, keep_all>> && kv_retention<interval<part::sinks, window<8, 4>>> &&
              kv_retention<interval<part::tail, keep_all>>);

}  // namespace kvilt::inline KVILT_ABI
