#pragma once

#include <kvilt/core/types.hpp>

#include <concepts>

namespace kvilt::inline KVILT_ABI {

/// How a page was used by one who gives it back.
struct page_use {
  idx first_token = 0;  // of the page, in its prefix
  int priority = 0;     // of the user, 0 to 7: the higher, the longer it is to stay
};

/// In which order cached pages lose their names when free pages run out. It is made for pages 0 to `pages()` - 1, and
/// hears of every page with a name:
///
///     stored(p, returns)    p has a name now; `returns`: one of the same prefix was evicted lately
///     hit(p)                a prompt begins with it
///     given(p, child, use)  a holder gives it back, after the page `child` of its prefix, or -1 at the prefix's end
///     idle(p)               it is cached, and has a place in the order from now on
///     busy(p)               it is cached no longer, and has none
///     pop()                 the first of the order leaves it; -1: there is none
///
/// NOTE: no page may come before one of a prefix that goes on from it: what is left would never be found. A holder gives
/// back the end of its prefix first, so an order of `idle` alone is right; a policy that ranks pages raises a page to the
/// rank of `child`. What is popped too early nevertheless, after a prefix was cut, keeps its name, and is idle again when
/// nothing goes on from it any more. Nothing here may take longer where there are more pages.
template <class E>
concept eviction_policy = std::movable<E> && std::constructible_from<E, idx> &&
    requires(E e, page_id p, const page_use& use) {
  { e.pages() } -> std::same_as<idx>;
  e.stored(p, true);
  e.hit(p);
  e.given(p, p, use);
  e.idle(p);
  e.busy(p);
  { e.pop() } -> std::same_as<page_id>;
};

}  // namespace kvilt::inline KVILT_ABI
