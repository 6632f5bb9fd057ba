#pragma once

#include <kvilt/core/math.hpp>
#include <kvilt/core/types.hpp>

#include <concepts>
#include <type_traits>

namespace kvilt::inline KVILT_ABI {

/// Where a slot lies, as ids and counts: bytes are the geometry's affair.
struct place {
  idx page = 0;
  int row = 0;  // in the page
  int run = 1;  // rows from this one on, it included, that follow each other in the page
};

/// What an owner asks of a layout: room for `sequences` sequences of up to `slots` rows each.
struct layout_request {
  int sequences = 0;
  idx slots = 0;
  int kv_heads = 0;
};

/// A layout maps (sequence, head, slot) to a place.
///   `static constexpr int min_run`    rows that are sure to follow each other from a page's first row on
///   `place locate(int sequence, int head, idx slot) const`
/// Optional:
///   `idx slots() const`, or `idx slots(int sequence) const`
///                                     slots that a sequence has; the verbs refuse what needs more
///   `bool has_table() const`          whether the memory that `locate` reads was given; the verbs refuse tokens without
template <class L>
concept kv_layout = std::is_trivially_copyable_v<L> && requires(const L l, int i, idx slot) {
  { L::min_run } -> std::convertible_to<int>;
  { l.locate(i, i, slot) } -> std::same_as<place>;
};

/// What an owner needs besides, to size and bind a layout by itself:
///   `int page_rows(layout_request) const`                 rows of a page, 1 or more
/// and either (pages by arithmetic)
///   `idx pages(layout_request) const`                     how many pages the request takes
///   `L bind(layout_request) const`                        the layout for it
/// or (pages from a pool, named by a table)
///   `L bind(const page_id* table, idx width) const`       table: [sequences][width], -1 where there is no page
/// or (the same, a table for each KV head, whose pages hold rows of that head alone)
///   `L bind(const page_id* table, idx width, int tables) const`
///                                                         table: [sequences][tables][width]
///   `int table(int sequence, int head) const`             which of these is a head's: sequence x tables + head
template <class L>
concept fixed_layout = kv_layout<L> && requires(const L l, layout_request r) {
  { l.page_rows(r) } -> std::convertible_to<int>;
  { l.pages(r) } -> std::convertible_to<idx>;
  { l.bind(r) } -> std::same_as<L>;
};
template <class L>
concept tabled_layout = kv_layout<L> && requires(const L l, layout_request r, const page_id* table) {
  { l.page_rows(r) } -> std::convertible_to<int>;
  { l.bind(table, idx()) } -> std::same_as<L>;
};
template <class L>
concept tabled_by_head = kv_layout<L> && requires(const L l, layout_request r, const page_id* table, int i) {
  { l.page_rows(r) } -> std::convertible_to<int>;
  { l.bind(table, idx(), i) } -> std::same_as<L>;
  { l.table(i, i) } -> std::same_as<int>;
};

namespace detail {

/// Pages come from a pool.
template <class L>
inline constexpr bool in_pages = tabled_layout<L> || tabled_by_head<L>;

template <class L>
consteval bool check_layout() {
  static_assert(std::is_trivially_copyable_v<L>, "kvilt: a layout must be trivially copyable: kernels get it by value");
  static_assert(
      requires {
        { L::min_run } -> std::convertible_to<int>;
      },
      "kvilt: a layout needs `static constexpr int min_run`, the rows sure to follow each other");
  static_assert(
      requires(const L l, int i, idx slot) {
        { l.locate(i, i, slot) } -> std::same_as<place>;
      },
      "kvilt: a layout needs `kvilt::place locate(int sequence, int head, kvilt::idx slot) const`");
  return true;
}

template <class L>
consteval bool check_owned_layout() {
  static_assert(
      fixed_layout<L> || in_pages<L>,
      "kvilt: to be owned by a cache a layout needs `int page_rows(layout_request) const` and either `idx "
      "pages(layout_request) const` with `L bind(layout_request) const`, or `L bind(const page_id* table, idx "
      "width) const`, or `L bind(const page_id* table, idx width, int tables) const` with `int table(int sequence, "
      "int head) const`");
  return true;
}

}  // namespace detail
}  // namespace kvilt::inline KVILT_ABI
