#pragma once

#include "support/session.hpp"

#include <algorithm>
#include <array>
#include <set>

// The pairwise covering of K's format, V's format, layout and retention by 90 policies, and of those with dims and
// group sizes by two shapes of each.
namespace support {

template <int I, int D = kvilt::dynamic>
auto format_at() {
  using namespace kvilt;
  if constexpr (I == 0) return fp32<D>();
  if constexpr (I == 1) return fp16<D>();
  if constexpr (I == 2) return bf16<D>();
  if constexpr (I == 3) return e4m3<D>();
  if constexpr (I == 4) return q8<D>();
  if constexpr (I == 5) return q8<D, 32>();
  if constexpr (I == 6) return rotated<q8<D>>();
  if constexpr (I == 7) return q4<D>();
  if constexpr (I == 8) return q4<D, 32>();
  if constexpr (I == 9) return rotated<q4<D>>();
}
inline constexpr int formats = 10, layouts = 9, retentions = 6;
constexpr bool in_groups(int format) {
  return format == 5 || format == 8;
}

template <int I>
auto layout_at() {
  using namespace kvilt;
  if constexpr (I == 0) return contiguous();
  if constexpr (I == 1) return paged<1>();
  if constexpr (I == 2) return paged<2>();
  if constexpr (I == 3) return paged<3>();
  if constexpr (I == 4) return paged<16>();
  if constexpr (I == 5) return paged<19>();
  if constexpr (I == 6) return paged<64>();
  if constexpr (I == 7) return paged<256>();
  if constexpr (I == 8) return paged<>(16);
}
inline constexpr std::array<int, layouts> page_sizes = {64, 1, 2, 3, 16, 19, 64, 256, 0};
inline constexpr std::array<int, formats> run_time_pages = {1, 2, 3, 5, 7, 16, 19, 33, 64, 256};
// Of the layouts above; `format` picks the run-time page size.
template <int I>
auto layout_for(int format) {
  if constexpr (I == layouts - 1)
    return kvilt::paged<>(run_time_pages[std::size_t(format)]);
  else
    return layout_at<I>();
}

// What stays, with windows of a width that is known at run time.
template <int I>
struct retention_at;
template <class Rule, int Sinks = 0, int Tail = 0, template <int> class Exact = kvilt::fp16>
struct retention_of {
  template <class Layout, class K, class V>
  using policy = kvilt::policy<Layout, K, V, Rule, Sinks, Tail, Exact>;
  using rule = Rule;
};
template <>
struct retention_at<0> : retention_of<kvilt::keep_all> {};
template <>
struct retention_at<1> : retention_of<kvilt::window<>> {};
template <>
struct retention_at<2> : retention_of<kvilt::window<kvilt::dynamic, 4>> {};
template <>
struct retention_at<3> : retention_of<kvilt::keep_all, 4, 16> {};
template <>
struct retention_at<4> : retention_of<kvilt::window<kvilt::dynamic, 3>, 0, 6> {};
template <>
struct retention_at<5> : retention_of<kvilt::keep_all, 0, 5, kvilt::bf16> {};

template <class Rule>
Rule rule_of(int width) {
  if constexpr (Rule::slides)
    return Rule(width);
  else
    return Rule();
}

// The 90 policies: number 9 k + l.
constexpr int v_format(int k, int l) {
  return (k + l) % formats;
}
constexpr int retention_number(int k, int l) {
  return (3 * l + k + l / 2) % retentions;
}

inline constexpr std::array<int, 9> dims = {40, 64, 72, 80, 96, 112, 128, 192, 256};
inline constexpr std::array<int, 11> groups = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 64};

// One run of one policy.
struct covering_case {
  int k = 0, v = 0, layout = 0, retention = 0;
  int k_dim = 0, v_dim = 0, group = 0;

  std::array<int, 7> values() const { return {k, v, layout, retention, k_dim, v_dim, group}; }
  bool possible() const {
    return k_dim != v_dim && (!in_groups(k) || k_dim % 32 == 0) && (!in_groups(v) || v_dim % 32 == 0);
  }
};

class pairs_met {
 public:
  // Pairs of values that `c` adds.
  int fresh(const covering_case& c) const {
    int count = 0;
    each(c, [&](auto pair) { count += met_.count(pair) == 0; });
    return count;
  }
  void add(const covering_case& c) {
    each(c, [&](auto pair) { met_.insert(pair); });
  }
  bool has(int i, int a, int j, int b) const { return met_.count({i, a, j, b}) != 0; }

 private:
  template <class Body>
  static void each(const covering_case& c, Body body) {
    const std::array<int, 7> v = c.values();
    for (int i = 0; i < 7; ++i)
      for (int j = std::max(i + 1, 4); j < 7; ++j) body(std::array<int, 4>{i, v[std::size_t(i)], j, v[std::size_t(j)]});
  }
  std::set<std::array<int, 4>> met_;
};

// Two shapes of each policy, each the one that meets most pairs not yet met.
inline const std::vector<covering_case>& covering() {
  static const std::vector<covering_case> cases = [] {
    std::vector<covering_case> chosen;
    pairs_met met;
    for (int n = 0; n < 2 * formats * layouts; ++n) {
      const int k = n / 2 / layouts, l = n / 2 % layouts;
      covering_case best;
      int most = -1;
      for (int shift = 0; shift < int(dims.size() * dims.size() * groups.size()); ++shift) {
        const int at = (shift + 5 * n) % int(dims.size() * dims.size() * groups.size());
        const covering_case c{k,
                              v_format(k, l),
                              l,
                              retention_number(k, l),
                              dims[std::size_t(at) % 9],
                              dims[std::size_t(at) / 9 % 9],
                              groups[std::size_t(at) / 81]};
        if (const int gain = c.possible() ? met.fresh(c) : -1; gain > most) most = gain, best = c;
      }
      met.add(best);
      chosen.push_back(best);
    }
    return chosen;
  }();
  return cases;
}

// The policy of a case, over `shape`.
template <int K, int L>
std::unique_ptr<subject> covering_subject(const covering_case& c, int width, const kvilt::cache_shape& shape,
                                          unsigned char fill) {
  using retention = retention_at<retention_number(K, L)>;
  using k_format = decltype(format_at<K>());
  using v_format_type = decltype(format_at<v_format(K, L)>());
  using policy = typename retention::template policy<decltype(layout_at<L>()), k_format, v_format_type>;
  return make_subject(
      policy(k_format(c.k_dim), v_format_type(c.v_dim), rule_of<typename retention::rule>(width), layout_for<L>(K)),
      shape, fill);
}

}  // namespace support
