#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/math.hpp>
#include <kvilt/core/types.hpp>

#include <concepts>
#include <type_traits>

namespace kvilt::inline KVILT_ABI {

/// Which (query, key) pair a variant is asked about.
struct where {
  int sequence = 0;  // its number in the view's tables
  int q_head = 0;
  int kv_head = 0;
  int q_index = 0;  // of the query among the sequence's queries of this step
  idx q_position = 0;
  idx k_position = 0;
};

/// A variant says what attention does to a score: a plain struct with any of these pure hooks.
///   `float score(where, float s) const`    the new score; s is in natural units, after every scale
///   `bool keep(where) const`               false hides the key
///   `float sink(int q_head) const`         a logit added once to the softmax's denominator, as a key would whose value
///                                          is 0, in natural units; the log-sum-exp includes it
/// Two hints for speed, beside `keep` and never instead of it; k_position is not set:
///   `position_range tiles(where) const`    where every kept key lies: what is outside need not be read
///   `bool whole(where, position_range) const`
///                                          true: every key of the range is kept, `keep` need not be asked for each
/// On the host, before each call of attention:
///   `void check() const`                   throws `invalid_argument` for what no hook can go by: a null pointer
template <class A>
concept attention_variant = std::is_trivially_copyable_v<A> &&(
    requires(const A a, where w, float s) {
      { a.score(w, s) } -> std::same_as<float>;
    } ||
    requires(const A a, where w) {
      { a.keep(w) } -> std::same_as<bool>;
    } ||
    requires(const A a, int q_head) {
      { a.sink(q_head) } -> std::same_as<float>;
    });

namespace detail {

template <class A>
consteval bool check_variant() {
  static_assert(attention_variant<A>,
                "kvilt: an attention variant is trivially copyable and has `float score(kvilt::where, float) const`, "
                "`bool keep(kvilt::where) const` or `float sink(int) const`");
  // NOTE: a hook that cannot be called as a kernel would is a mistake, not an absence.
  if constexpr (requires { &A::keep; })
    static_assert(
        requires(const A a, where w) {
          { a.keep(w) } -> std::same_as<bool>;
        },
        "kvilt: a variant's `keep` must be `bool keep(const kvilt::where&) const`");
  if constexpr (requires { &A::score; })
    static_assert(
        requires(const A a, where w, float s) {
          { a.score(w, s) } -> std::same_as<float>;
        },
        "kvilt: a variant's `score` must be `float score(const kvilt::where&, float) const`");
  if constexpr (requires { &A::tiles; })
    static_assert(
        requires(const A a, where w) {
          { a.tiles(w) } -> std::same_as<position_range>;
        },
        "kvilt: a variant's `tiles` must be `kvilt::position_range tiles(const kvilt::where&) const`");
  if constexpr (requires { &A::whole; })
    static_assert(
        requires(const A a, where w, position_range r) {
          { a.whole(w, r) } -> std::same_as<bool>;
        },
        "kvilt: a variant's `whole` must be `bool whole(const kvilt::where&, kvilt::position_range) const`");
  if constexpr (requires { &A::sink; })
    static_assert(
        requires(const A a, int q_head) {
          { a.sink(q_head) } -> std::same_as<float>;
        },
        "kvilt: a variant's `sink` must be `float sink(int q_head) const`");
  return true;
}

template <class A>
KVILT_HD constexpr bool keeps(const A& a, const where& w) {
  if constexpr (requires { a.keep(w); })
    return a.keep(w);
  else
    return true;
}
template <class A>
KVILT_HD constexpr position_range tiles_of(const A& a, const where& w) {
  if constexpr (requires { a.tiles(w); })
    return a.tiles(w);
  else
    return {0, no_end};
}
template <class A>
KVILT_HD constexpr bool keeps_whole(const A& a, const where& w, position_range r) {
  if constexpr (requires { a.whole(w, r); })
    return a.whole(w, r);
  else if constexpr (requires { a.keep(w); })
    return false;
  else
    return true;
}
template <class A>
void check_hooks(const A& a) {
  if constexpr (requires { a.check(); }) a.check();
}
template <class A>
inline constexpr bool has_sink = requires(const A a) {
  a.sink(0);
};
template <class A>
KVILT_HD constexpr float scored(const A& a, const where& w, float s) {
  if constexpr (requires { a.score(w, s); })
    return a.score(w, s);
  else
    return s;
}

}  // namespace detail

/// Every key: cross attention, encoders.
struct full {
  KVILT_HD constexpr bool keep(const where&) const { return true; }
  KVILT_HD constexpr bool whole(const where&, position_range) const { return true; }
};

/// A query sees itself and what came before.
struct causal {
  KVILT_HD constexpr bool keep(const where& w) const { return w.k_position <= w.q_position; }
  KVILT_HD constexpr position_range tiles(const where& w) const { return {0, w.q_position + 1}; }
  KVILT_HD constexpr bool whole(const where& w, position_range r) const { return r.last <= w.q_position + 1; }
};

/// Causal over the last `width` tokens, the query's own included; the cache may hold more (another layer's).
struct causal_window {
  idx width = 0;
  void check() const { detail::expects(width >= 1, "a window of ", width, " tokens; at least 1 is needed"); }
  KVILT_HD constexpr bool keep(const where& w) const {
    return w.k_position <= w.q_position && w.k_position > w.q_position - width;
  }
  KVILT_HD constexpr position_range tiles(const where& w) const {
    return {larger(0, w.q_position + 1 - width), w.q_position + 1};
  }
  KVILT_HD constexpr bool whole(const where& w, position_range r) const {
    return r.last <= w.q_position + 1 && r.first > w.q_position - width;
  }
};

/// `first` then `second`: scores left to right, masks by AND, the sink of the one that has it.
template <attention_variant First, attention_variant Second>
struct composed {
  static_assert(!detail::has_sink<First> || !detail::has_sink<Second>,
                "kvilt: at most one of the variants that are composed has a `sink`");
  First first;
  Second second;
  void check() const { detail::check_hooks(first), detail::check_hooks(second); }
  KVILT_HD constexpr bool keep(const where& w) const { return detail::keeps(first, w) && detail::keeps(second, w); }
  KVILT_HD constexpr float score(const where& w, float s) const {
    return detail::scored(second, w, detail::scored(first, w, s));
  }
  KVILT_HD constexpr position_range tiles(const where& w) const {
    const position_range a = detail::tiles_of(first, w), b = detail::tiles_of(second, w);
    return {larger(a.first, b.first), smaller(a.last, b.last)};
  }
  KVILT_HD constexpr bool whole(const where& w, position_range r) const {
    return detail::keeps_whole(first, w, r) && detail::keeps_whole(second, w, r);
  }
  KVILT_HD constexpr float sink(int q_head) const requires(detail::has_sink<First> || detail::has_sink<Second>) {
    if constexpr (detail::has_sink<First>)
      return first.sink(q_head);
    else
      return second.sink(q_head);
  }
};
template <attention_variant First>
constexpr First compose(First first) {
  return first;
}
template <attention_variant First, attention_variant... Rest>
constexpr auto compose(First first, Rest... rest) {
  return composed<First, decltype(compose(rest...))>{first, compose(rest...)};
}

static_assert(attention_variant<full> && attention_variant<causal> && attention_variant<causal_window> &&
              attention_variant<composed<causal, causal_window>>);

}  // namespace kvilt::inline KVILT_ABI
