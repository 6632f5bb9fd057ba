#pragma once

#include <kvilt/cache/listed.hpp>
#include <kvilt/cache/view.hpp>
#include <kvilt/core/error.hpp>
#include <kvilt/format/floating.hpp>
#include <kvilt/format/rotate.hpp>
#include <kvilt/layout/contiguous.hpp>
#include <kvilt/layout/paged.hpp>
#include <kvilt/layout/paged_by_head.hpp>

namespace kvilt::inline KVILT_ABI {

namespace detail {

/// The 16-bit format that keeps rows in the same rotation as `F`, so that they share its Q and its output.
template <class F, template <int> class Exact, int D>
struct exact_form {
  using type = rotated<Exact<D>, rotation_of<F>>;
};
template <class F, template <int> class Exact, int D>
requires std::is_same_v<rotation_of<F>, no_rotation>
struct exact_form<F, Exact, D> {
  using type = Exact<D>;
};

template <class F, template <int> class Exact>
using exact_like = typename exact_form<F, Exact, static_dim<F>()>::type;

/// The same of V, which may lie in K's record.
template <class V, class ExactK, template <int> class Exact>
struct exact_values {
  using type = exact_like<V, Exact>;
};
template <class V, class ExactK, template <int> class Exact>
requires shares_keys<V>
struct exact_values<V, ExactK, Exact> {
  using type = typename V::template of_keys<ExactK>;
};

/// The rule of the body's rows.
template <class Layout, class Retention>
struct body_rule {
  using type = interval<part::body, Retention>;
};
template <class Layout>
struct body_rule<Layout, listed> {
  using type = listed_body<Layout>;
};

}  // namespace detail

/// The name of a way to keep K and V: a layout, a format for each of K and V, which tokens stay, how many of the first
/// tokens (`Sinks`) and of the newest (`Tail`) are kept in 16 bit (`Exact`) around the body. A value: it carries what
/// its parts leave to run time (dims, page size, window).
///
///     using kv = kvilt::policy<kvilt::paged<16>, kvilt::q4<128>, kvilt::q4<128>, kvilt::keep_all, 4, 64>;
template <class Layout, class K, class V = K, class Retention = keep_all, int Sinks = 0, int Tail = 0,
          template <int> class Exact = fp16>
struct policy {
  static_assert(detail::check_layout<Layout>() && detail::check_owned_layout<Layout>());
  static_assert(detail::check_format<K>() && detail::check_format<V>());
  static_assert(Sinks >= 0 && Tail >= 0, "kvilt: counts of 16-bit tokens are not negative");
  static_assert(Sinks == 0 || Retention::sinks() == 0 || Retention::sinks() == Sinks,
                "kvilt: a window's sinks and the 16-bit sinks are the same tokens: give the same count or none");
  static_assert(!Retention::slides || (K::rows == 1 && V::rows == 1), "kvilt: a window takes token formats only");
  static_assert(!evicts_tokens<Retention> || (K::rows == 1 && V::rows == 1),
                "kvilt: tokens are evicted from token formats only: of a tile none can go by itself");
  static_assert(Tail > 0 || (K::rows == 1 && V::rows == 1),
                "kvilt: a tile format needs a 16-bit tail in which its next tile gathers");

  using layout_type = Layout;
  using k_format = K;
  using v_format = V;
  using retention_type = Retention;
  using exact_k = detail::exact_like<K, Exact>;
  using exact_v = typename detail::exact_values<V, exact_k, Exact>::type;

  /// 16-bit sinks and tail, and all sinks however kept.
  static constexpr int exact_sinks = Sinks, tail = Tail;
  static constexpr int sinks = Sinks > 0 ? Sinks : Retention::sinks();
  /// Tokens of one tile: the body grows by this many at a time.
  static constexpr int tile = K::rows > V::rows ? K::rows : V::rows;

  using body_segment = segment<Layout, typename detail::body_rule<Layout, Retention>::type, K, V>;
  using sinks_segment =
      std::conditional_t<(Sinks > 0), segment<contiguous, interval<part::sinks, Retention>, exact_k, exact_v>,
                         segment<Layout, interval<part::sinks, Retention>, K, V>>;
  using tail_segment = segment<contiguous, interval<part::tail, Retention>, exact_k, exact_v>;

  Layout layout;
  K k;
  V v;
  Retention retention;

  constexpr policy() = default;
  constexpr explicit policy(const K& k_rows, const V& v_rows, const Retention& r = {}, const Layout& l = {})
      : layout(l), k(k_rows), v(v_rows), retention(r) {}
  /// Formats that are made from their dim, `K{dim}` and `V{dim}`. Throws `invalid_argument` where theirs is another.
  constexpr explicit policy(int dim, const Retention& r = {}, const Layout& l = {})
      : layout(l), k{dim}, v{dim}, retention(r) {
    if (k.dim() != dim || v.dim() != dim)
      detail::expects(false, "a policy whose rows have ", k.dim(), " and ", v.dim(), " numbers is made for rows of ",
                      dim);
  }

  constexpr exact_k k_exact() const { return exact_k(k.dim()); }
  constexpr exact_v v_exact() const {
    if constexpr (shares_keys<V>)
      return exact_v(k_exact());
    else
      return exact_v(v.dim());
  }
};

/// Contiguous memory for the last `W` tokens and the first `S`, reused in turn.
template <class K, class V = K, int W = dynamic, int S = 0>
using ring = policy<contiguous, K, V, window<W, S>>;

namespace detail {

template <memory_space Space, class P>
struct view_choice {
  static constexpr bool with_sinks = P::sinks > 0, with_tail = P::tail > 0;
  static auto choose() {
    if constexpr (with_sinks && with_tail)
      return view<Space, typename P::sinks_segment, typename P::body_segment, typename P::tail_segment>();
    else if constexpr (with_sinks)
      return view<Space, typename P::sinks_segment, typename P::body_segment>();
    else if constexpr (with_tail)
      return view<Space, typename P::body_segment, typename P::tail_segment>();
    else
      return view<Space, typename P::body_segment>();
  }
  using type = decltype(choose());
};

}  // namespace detail

/// The view that a cache of policy `P` gives.
template <memory_space Space, class P>
using view_of = typename detail::view_choice<Space, P>::type;

}  // namespace kvilt::inline KVILT_ABI
