#pragma once

#include <kvilt/layout/layout.hpp>

namespace kvilt::inline KVILT_ABI {

/// Pages of `P` rows of one KV head from a pool, any P >= 1, and a page table for each head of a sequence: a head of which
/// fewer rows are kept has fewer pages, as Ada-KV shares them out (Y. Feng et al., "Ada-KV: optimizing KV cache eviction
/// by adaptive budget allocation for efficient LLM inference", 2024). `paged_by_head<>` takes its page size at run time.
/// In a cache the heads of all layers have their pages from one pool. Every head's rows lie alike in their page, so planes
/// have a head stride of 0.
template <int P = dynamic>
class paged_by_head {
  static_assert(P == dynamic || P >= 1, "kvilt: a page has at least one row");

 public:
  static constexpr int min_run = P == dynamic ? 1 : P;
  static constexpr const char* name() { return "paged_by_head"; }

  constexpr paged_by_head() = default;
  /// A view of an engine's own tables: table [sequences][tables][width], of which head h has number h; entries that no
  /// live slot uses are never read.
  constexpr paged_by_head(const page_id* table, idx width, int tables) requires(P != dynamic)
      : table_(table), width_(width), tables_(tables) {}
  constexpr paged_by_head(int page_size, const page_id* table, idx width, int tables) requires(P == dynamic)
      : table_(table), width_(width), tables_(tables), size_(page_size) {}
  /// An unbound layout for an owner.
  constexpr explicit paged_by_head(int page_size) requires(P == dynamic) : size_(page_size) {}

  /// The number of a head's table among those of all sequences.
  KVILT_HD constexpr int table(int sequence, int head) const { return sequence * tables_ + head; }
  KVILT_HD constexpr place locate(int sequence, int head, idx slot) const {
    const idx page = size_.quotient(slot);
    const int row = int(slot - page * page_size());
    return {table_[table(sequence, head) * width_ + page], row, page_size() - row};
  }

  KVILT_HD constexpr idx slots() const { return width_ * page_size(); }

  KVILT_HD constexpr bool has_table() const { return table_ != nullptr || width_ == 0; }

  KVILT_HD constexpr int page_size() const { return size_.value(); }
  constexpr int page_rows(layout_request) const { return page_size(); }
  constexpr paged_by_head bind(const page_id* table, idx width, int tables) const {
    paged_by_head bound = *this;
    bound.table_ = table;
    bound.width_ = width;
    bound.tables_ = tables;
    return bound;
  }

 private:
  const page_id* table_ = nullptr;  // [sequences][tables][width]
  idx width_ = 0;
  int tables_ = 0;
  std::conditional_t<P == dynamic, fast_divisor, fixed_divisor<P>> size_;
};

static_assert(tabled_by_head<paged_by_head<16>> && tabled_by_head<paged_by_head<>>);

}  // namespace kvilt::inline KVILT_ABI
