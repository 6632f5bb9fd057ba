#pragma once

#include <kvilt/cache/policy_name.hpp>

#include <type_traits>
#include <utility>

namespace kvilt::inline KVILT_ABI {

/// Numbers in a row of K and in a row of V.
struct row_dims {
  int k = 0, v = 0;
  constexpr row_dims(int both) : k(both), v(both) {}
  constexpr row_dims(int k_dim, int v_dim) : k(k_dim), v(v_dim) {}
};

namespace detail {

/// A part with a number that is known at run time, where the part takes one; what it then says decides.
template <class T>
constexpr T part_of(idx number) {
  if constexpr (requires { T{int(number)}; })
    return T{int(number)};
  else
    return T{};
}

/// One policy of a list, held against a string: which pieces it has, and the policy itself.
template <class P>
struct policy_match {
  using parts = policy_parts<P>;
  using layout_type = typename P::layout_type;
  using rule = typename P::retention_type;

  constexpr policy_match(const policy_words& words, row_dims dims)
      : layout_(layout_of(words[name_piece::layout])),
        k_(part_of<typename P::k_format>(dims.k)),
        v_(values_of(k_, dims.v)),
        rule_(rule_of(words)) {
    const bool has[name_pieces] = {has_layout(words[name_piece::layout]), words[name_piece::k] == parts::k,
                                   words[name_piece::v] == parts::v,      has_window(words),
                                   P::exact_sinks == words.sinks,         P::tail == words.tail,
                                   parts::exact == words.exact,           k_.dim() == dims.k && v_.dim() == dims.v};
    while (matched_ < name_pieces && has[matched_]) ++matched_;
  }

  /// Pieces that agree, from the first on; all of them where it is the policy.
  constexpr int matched() const { return matched_; }
  constexpr explicit operator bool() const { return matched_ == name_pieces; }
  constexpr P policy() const { return P(k_, v_, rule_, layout_); }

 private:
  static constexpr idx page_rows_in(std::string_view word) {
    return word.substr(0, parts::layout.size()) == parts::layout ? number_in(word.substr(parts::layout.size())) : 0;
  }
  static constexpr layout_type layout_of(std::string_view word) {
    if constexpr (in_pages<layout_type>)
      return part_of<layout_type>(page_rows_in(word));
    else
      return layout_type{};
  }
  constexpr bool has_layout(std::string_view word) const {
    if constexpr (in_pages<layout_type>) {
      const idx rows = page_rows_in(word);
      return rows > 0 && rows == parts::page_rows(layout_);
    } else {
      return word == parts::layout;
    }
  }
  constexpr bool has_window(const policy_words& words) const {
    if (!rule::slides) return words.window == 0 && words.listed == evicts_tokens<rule>;
    return words.window > 0 && rule_.width() == words.window && rule::sinks() == words.window_sinks;
  }
  /// V's format, which is of K's where V lies in K's records.
  static constexpr typename P::v_format values_of(const typename P::k_format& k, int dim) {
    if constexpr (shares_keys<typename P::v_format>)
      return typename P::v_format(k);
    else
      return part_of<typename P::v_format>(dim);
  }
  static constexpr rule rule_of(const policy_words& words) {
    if constexpr (rule::slides)
      return part_of<rule>(words.window);
    else
      return rule{};
  }

  layout_type layout_;
  typename P::k_format k_;
  typename P::v_format v_;
  rule rule_;
  int matched_ = 0;
};

template <class... Policies>
[[noreturn]] void refuse_name(std::string_view text, const std::string& why) {
  std::string offered;
  ((offered += (offered.empty() ? "" : ", ") + name_of(Policies{})), ...);
  raise<invalid_argument>("policy " + quoted(text) + ": " + why + "; the list has " + offered);
}

/// Why no policy of a list has all pieces: `matched` is the most, from the first on, that one of them has.
inline std::string missing_piece(const policy_words& words, int matched, row_dims dims) {
  static constexpr const char* what[] = {"layout",       "format of K", "format of V",  "window",
                                         "16-bit sinks", "16-bit tail", "16-bit format"};
  if (matched == int(name_piece::dims))
    return "none of this name has rows of " + std::to_string(dims.k) + " and " + std::to_string(dims.v) + " numbers";
  const std::string_view piece = words.pieces[matched];
  if (piece.empty()) return std::string("a piece for its ") + what[matched] + " is missing";
  const std::string none = matched == 0 ? "no policy has the " : "none that has what precedes it has the ";
  return none + what[matched] + " " + quoted(piece);
}

/// NOTE: only what is constant in every policy is compared: a user's layout need not be made while compiling.
template <class A, class B>
constexpr bool same_name() {
  using a = policy_parts<A>;
  using b = policy_parts<B>;
  return std::is_same_v<typename A::layout_type, typename B::layout_type> &&
         std::is_same_v<typename A::retention_type, typename B::retention_type> && a::k == b::k && a::v == b::v &&
         a::exact == b::exact && A::exact_sinks == B::exact_sinks && A::tail == B::tail &&
         static_dim<typename A::k_format>() == static_dim<typename B::k_format>() &&
         static_dim<typename A::v_format>() == static_dim<typename B::v_format>();
}
template <class P, class... Policies>
constexpr int policies_named_as() {
  return (int(same_name<P, Policies>()) + ...);
}

}  // namespace detail

/// What `dispatch` chooses from: every policy that a program instantiates.
///
///     using my = kvilt::policy_list<kvilt::policy<kvilt::paged<16>, kvilt::q8<128>>, kvilt::policy<...>>;
template <class... Policies>
struct policy_list {
  static_assert(sizeof...(Policies) > 0, "kvilt: a list of policies has at least one");
  static_assert(((detail::policies_named_as<Policies, Policies...>() == 1) && ...),
                "kvilt: two policies of a list have the same name and rows: the second could not be chosen");
  static constexpr int size = sizeof...(Policies);

  /// `body(P{})` for each, unbound: as `name_of` lists them.
  template <class Body>
  static constexpr void each(Body&& body) {
    (body(Policies{}), ...);
  }
};

namespace detail {

template <class List>
struct dispatcher;
template <class First, class... Rest>
struct dispatcher<policy_list<First, Rest...>> {
  template <class Body>
  using result = std::invoke_result_t<Body&, const First&>;

  template <class Body>
  static result<Body> run(std::string_view text, row_dims dims, Body& body) {
    static_assert((std::is_same_v<result<Body>, std::invoke_result_t<Body&, const Rest&>> && ...),
                  "kvilt: what is called for each policy of a list returns the same type for each");
    const policy_words words = policy_reader(text, refuse_name<First, Rest...>).read();
    return choose<Body, First, Rest...>(words, dims, body, 0);
  }

 private:
  template <class Body, class P, class... Others>
  static result<Body> choose(const policy_words& words, row_dims dims, Body& body, int best) {
    const policy_match<P> match(words, dims);
    if (match) return body(match.policy());
    best = int(larger(best, match.matched()));
    if constexpr (sizeof...(Others) > 0)
      return choose<Body, Others...>(words, dims, body, best);
    else
      refuse_name<First, Rest...>(words.text, missing_piece(words, best, dims));
  }
};

}  // namespace detail

/// Calls `body(policy)` with the policy of `List` that `text` names, for rows of these dims, and returns what it
/// returns, one type for all. Where a type leaves a number to run time (`paged<>`, `window<>`, `q8<>`) the string and
/// `dims` give it; of several policies that fit, the first is taken. Parts that hold more than that (pointers to
/// scales) are the caller's to set in a copy.
///
///     kvilt::dispatch<my>("paged16:q8rot:q4:tail64", 128, [&]<class Policy>(const Policy& policy) { ... });
///
/// The grammar is in policy_name.hpp. Throws `invalid_argument` with the piece that does not fit and all that the list
/// has. Nothing is allocated otherwise.
template <class List, class Body>
decltype(auto) dispatch(std::string_view text, row_dims dims, Body&& body) {
  return detail::dispatcher<List>::run(text, dims, body);
}

}  // namespace kvilt::inline KVILT_ABI
