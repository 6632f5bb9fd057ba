#pragma once

#include <kvilt/layout/layout.hpp>

namespace kvilt::inline KVILT_ABI {

/// Pages of `P` rows from a pool, any P >= 1, named by a table; `paged<>` takes its page size at run time.
/// A page holds every KV head of its tokens (W. Kwon et al., "Efficient memory management for large language model
/// serving with PagedAttention", 2023).
template <int P = dynamic>
class paged {
  static_assert(P == dynamic || P >= 1, "kvilt: a page has at least one row");

 public:
  static constexpr int min_run = P == dynamic ? 1 : P;
  static constexpr const char* name() { return "paged"; }

  constexpr paged() = default;
  /// A view of an engine's own table: table [sequences][width], entries that no live slot uses are never read.
  constexpr paged(const page_id* table, idx width) requires(P != dynamic) : table_(table), width_(width) {}
  constexpr paged(int page_size, const page_id* table, idx width) requires(P == dynamic)
      : table_(table), width_(width), size_(page_size) {}
  /// An unbound layout for an owner.
  constexpr explicit paged(int page_size) requires(P == dynamic) : size_(page_size) {}

  KVILT_HD constexpr place locate(int sequence, int, idx slot) const {
    const idx page = size_.quotient(slot);
    const int row = int(slot - page * page_size());
    return {table_[sequence * width_ + page], row, page_size() - row};
  }

  KVILT_HD constexpr idx slots() const { return width_ * page_size(); }

  KVILT_HD constexpr bool has_table() const { return table_ != nullptr || width_ == 0; }

  KVILT_HD constexpr int page_size() const { return size_.value(); }
  constexpr int page_rows(layout_request) const { return page_size(); }
  constexpr paged bind(const page_id* table, idx width) const {
    paged bound = *this;
    bound.table_ = table;
    bound.width_ = width;
    return bound;
  }

 private:
  const page_id* table_ = nullptr;  // [sequences][width]
  idx width_ = 0;
  std::conditional_t<P == dynamic, fast_divisor, fixed_divisor<P>> size_;
};

static_assert(tabled_layout<paged<16>> && tabled_layout<paged<>>);

}  // namespace kvilt::inline KVILT_ABI
