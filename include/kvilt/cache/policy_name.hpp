#pragma once

#include <kvilt/cache/policy.hpp>

#include <string>
#include <string_view>

/// \file
/// Policies as strings: `layout:K` or `layout:K:V`, then options in any order.
///
///     paged16:q8rot:q4:sinks4:tail64      contiguous:fp16:window256+4      paged16:bf16
///
///   layout     its `name()`; where a table names its pages, their rows too: "paged16"
///   K, V       the formats' `name()`; K alone stands for both
///   window<W>  a query sees the last W tokens; window<W>+<S>: and the first S, in the body's formats
///   listed     tokens stay until others are listed
///   sinks<N>   the first N tokens are kept in 16 bit
///   tail<N>    the newest N tokens are kept in 16 bit
///   exact_<F>  that 16 bit format where it is not fp16: "exact_bf16"
///
/// Numbers are from 1 to 2^31 - 1, without leading zeros. Case counts. "N" stands for a number that a type leaves to
/// run time.

namespace kvilt::inline KVILT_ABI {
namespace detail {

template <class T>
consteval bool check_named() {
  static_assert(
      requires {
        { T::name() } -> std::convertible_to<std::string_view>;
      },
      "kvilt: to be chosen by its name a layout or a format needs `static constexpr const char* name()`");
  return true;
}

template <class P>
struct policy_parts;
template <class L, class K, class V, class R, int S, int T, template <int> class Exact>
struct policy_parts<policy<L, K, V, R, S, T, Exact>> {
  static_assert(check_named<L>() && check_named<K>() && check_named<V>());
  static constexpr std::string_view layout = L::name(), k = K::name(), v = V::name();
  /// What the 16-bit parts are kept in; fp16 where there are none.
  static constexpr std::string_view exact = S + T > 0 ? Exact<8>::name() : fp16<8>::name();
  /// Rows of a page where a table names it.
  static constexpr idx page_rows(const L& l) {
    if constexpr (in_pages<L>)
      return l.page_rows({});
    else
      return 0;
  }
};

inline std::string number_name(idx n) {
  return n > 0 ? std::to_string(n) : "N";
}

}  // namespace detail

/// The string of which `dispatch` makes this policy again: see the head of this file.
template <class L, class K, class V, class R, int S, int T, template <int> class Exact>
std::string name_of(const policy<L, K, V, R, S, T, Exact>& p) {
  using parts = detail::policy_parts<policy<L, K, V, R, S, T, Exact>>;
  std::string name(parts::layout);
  if constexpr (detail::in_pages<L>) name += detail::number_name(parts::page_rows(p.layout));
  name.append(":").append(parts::k);
  if (parts::v != parts::k) name.append(":").append(parts::v);
  if (R::slides) name += ":window" + detail::number_name(p.retention.width());
  if (R::slides && R::sinks() > 0) name += "+" + std::to_string(R::sinks());
  if (evicts_tokens<R>) name.append(":").append(R::name());
  if (S > 0) name += ":sinks" + std::to_string(S);
  if (T > 0) name += ":tail" + std::to_string(T);
  if (parts::exact != fp16<8>::name()) name.append(":exact_").append(parts::exact);
  return name;
}

namespace detail {

/// Which part of a policy's string; in the order in which a list is narrowed down.
enum class name_piece : unsigned char { layout, k, v, window, sinks, tail, exact, dims };
inline constexpr int name_pieces = 8;

/// A policy's string taken apart. Nothing is copied: pieces point into the string.
struct policy_words {
  std::string_view text;
  std::string_view pieces[name_pieces] = {};  // as they were written; empty: not given
  idx window = 0, sinks = 0, tail = 0;        // 0: not given
  idx window_sinks = 0;
  bool listed = false;  // in the place of a window
  std::string_view exact = fp16<8>::name();

  std::string_view operator[](name_piece p) const { return pieces[int(p)]; }
  std::string_view& operator[](name_piece p) { return pieces[int(p)]; }
};

/// The number that `digits` says, 0 where it is none from 1 to 2^31 - 1 without leading zeros.
constexpr idx number_in(std::string_view digits) {
  constexpr idx largest = (idx(1) << 31) - 1;
  if (digits.empty() || digits.size() > 10 || digits[0] == '0') return 0;
  idx n = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return 0;
    n = 10 * n + (c - '0');
  }
  return n <= largest ? n : 0;
}

/// Says why `text` names no policy; does not return.
using name_refusal = void (*)(std::string_view text, const std::string& why);

/// A piece of a string that may hold anything, so that a message stays one readable line.
inline std::string quoted(std::string_view piece) {
  constexpr std::size_t longest = 80;
  std::string out = "'";
  for (const char c : piece.substr(0, longest)) out += (unsigned char)(c) < ' ' || c == 127 ? '?' : c;
  return out + (piece.size() > longest ? "...'" : "'");
}

/// Takes a string apart.
class policy_reader {
 public:
  policy_reader(std::string_view text, name_refusal refuse) : refuse_(refuse) { words_.text = text; }

  policy_words read() {
    words_[name_piece::layout] = next("a layout");
    words_[name_piece::k] = next("a format of K");
    while (!done_) {
      const std::string_view piece = next("an option");
      if (option(piece)) continue;
      if (!words_[name_piece::v].empty() || any_option_)
        fail(quoted(piece) +
             " is no option; there are window<W>, window<W>+<S>, listed, sinks<N>, tail<N> and exact_<format>");
      words_[name_piece::v] = piece;
    }
    if (words_[name_piece::v].empty()) words_[name_piece::v] = words_[name_piece::k];
    return words_;
  }

 private:
  std::string_view next(const char* what) {
    if (done_) fail(std::string("it ends where ") + what + " should be");
    const std::size_t end = words_.text.find(':', at_);
    const std::string_view piece = words_.text.substr(at_, end - at_);
    done_ = end == std::string_view::npos;
    at_ = end + 1;
    if (piece.empty()) fail(std::string("a piece is empty where ") + what + " should be");
    return piece;
  }

  bool option(std::string_view piece) {
    if (counted(piece, "window", name_piece::window)) {
      const std::string_view digits = piece.substr(6);
      const std::size_t plus = digits.find('+');
      words_.window = number(piece, digits.substr(0, plus));
      if (plus != std::string_view::npos) words_.window_sinks = number(piece, digits.substr(plus + 1));
    } else if (piece == "listed") {
      once(piece, name_piece::window);
      words_.listed = true;
    } else if (counted(piece, "sinks", name_piece::sinks)) {
      words_.sinks = number(piece, piece.substr(5));
    } else if (counted(piece, "tail", name_piece::tail)) {
      words_.tail = number(piece, piece.substr(4));
    } else if (piece.substr(0, 6) == "exact_") {
      once(piece, name_piece::exact);
      words_.exact = piece.substr(6);
    } else {
      return false;
    }
    return any_option_ = true;
  }
  /// Whether the piece is this option: its word and something that begins as numbers do.
  bool counted(std::string_view piece, std::string_view word, name_piece which) {
    if (piece.substr(0, word.size()) != word) return false;
    const std::string_view rest = piece.substr(word.size());
    if (!rest.empty() && (rest[0] < '0' || rest[0] > '9') && rest[0] != '-' && rest[0] != '+') return false;
    once(piece, which);
    return true;
  }
  void once(std::string_view piece, name_piece which) {
    if (!words_[which].empty()) fail(quoted(piece) + " comes after " + quoted(words_[which]) + "; once is enough");
    words_[which] = piece;
  }
  idx number(std::string_view piece, std::string_view digits) const {
    const idx n = number_in(digits);
    if (n == 0) fail("the number in " + quoted(piece) + " is none from 1 to 2147483647");
    return n;
  }

  void fail(const std::string& why) const { refuse_(words_.text, why); }

  policy_words words_;
  name_refusal refuse_;
  std::size_t at_ = 0;
  bool done_ = false, any_option_ = false;
};

}  // namespace detail
}  // namespace kvilt::inline KVILT_ABI
