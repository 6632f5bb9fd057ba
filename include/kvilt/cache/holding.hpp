#pragma once

#include <kvilt/cache/step.hpp>
#include <kvilt/core/error.hpp>
#include <kvilt/core/math.hpp>

/// \file
/// What an owner knows of a sequence, and how its tokens are shared out between body and 16-bit tail.

namespace kvilt::inline KVILT_ABI::detail {

struct persistence;  // tiers/persistence.hpp

/// What is held of it, in a row of the view's tables.
struct entry {
  idx length = 0;
  idx body = 0;          // tokens below have left the 16-bit tail
  idx pages_passed = 0;  // entries of its tables that a window has left
  idx written = 0;       // tokens ever written beyond which a ring holds nothing older
  idx lost = 0;          // tokens below may have left the tail when no window showed them, and are nowhere
};

struct begun_item {
  step_item item;
  int slot = 0;
};

template <class Policy>
idx whole_tiles(idx tokens) {
  return larger(tokens, 0) / Policy::tile * Policy::tile;
}

/// Lengths of a step that appends `tokens` to `length`, of which those below `body` have left the tail. NOTE: the step's
/// first query still sees a whole tail in 16 bit, and only committed tokens leave it.
template <class Policy>
lengths grown(idx length, idx body, idx tokens) {
  const idx after = length + tokens;
  if constexpr (Policy::tail == 0) return {length, after, length, after};
  if (tokens == 0) return {length, after, body, body};
  const idx outside = whole_tiles<Policy>(length + 1 - Policy::tail - Policy::sinks);
  return {length, after, body, larger(body, Policy::sinks + outside)};
}

/// What a sequence of `length` tokens holds between steps if all but its tail has left that, or `body` tokens have.
template <class Policy>
lengths holding(idx length, idx body = -1) {
  if constexpr (Policy::tail == 0) return {length, length, length, length};
  if (body < 0) body = Policy::sinks + whole_tiles<Policy>(length - Policy::tail - Policy::sinks);
  return {length, length, body, body};
}

/// Lengths that a step of at most `max_step` tokens can go on from.
template <class Policy>
void check_holding(int sequence, const lengths& n, idx max_step) {
  const idx body = Policy::tail ? n.body_after : n.after;
  expects(n.before == n.after && n.body_before == n.body_after && n.body_after == body, "sequence ", sequence,
          " is to hold ", n.before, " to ", n.after, " tokens, and ", n.body_before, " to ", n.body_after,
          " in its body: a step's lengths, not what is held between steps");
  if constexpr (Policy::tail > 0) {
    const idx most = Policy::tail + Policy::tile + max_step - 2;
    expects(body >= Policy::sinks && body <= larger(n.after, Policy::sinks) &&
                (body - Policy::sinks) % Policy::tile == 0 && n.after - body <= most,
            "sequence ", sequence, " is to hold ", n.after, " tokens and the body those below ", body,
            "; whole tiles of ", Policy::tile, " after ", Policy::sinks, " sinks belong there, and at most ", most,
            " tokens in the tail");
  }
}

}  // namespace kvilt::inline KVILT_ABI::detail
