#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/types.hpp>

#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// A piece of every page of a pool, say one layer's codes: page p's lies at `base + p * page_stride`.
struct page_piece {
  unsigned char* base = nullptr;
  idx page_stride = 0;
  idx bytes = 0;
};

/// What lies in the pages of a pool, piece by piece; the memory is the engine's. A page as one row of bytes has its pieces
/// in their order. Throws `invalid_argument`.
class page_memory {
 public:
  page_memory(std::vector<page_piece> pieces, idx pages) : pieces_(std::move(pieces)), pages_(pages) {
    detail::expects(!pieces_.empty() && pages >= 0, "pages of ", pieces_.size(), " pieces, ", pages, " of them");
    for (const page_piece& p : pieces_) {
      detail::expects(p.base != nullptr && p.bytes > 0 && p.page_stride >= p.bytes, "a piece of ", p.bytes,
                      " bytes of each page, ", p.page_stride, " apart", p.base ? "" : ", at null");
      bytes_ += p.bytes;
    }
  }

  idx pages() const { return pages_; }
  idx page_bytes() const { return bytes_; }

  /// `visit(bytes, how many)` for each piece of a page, or of a page in one row at `row`, where that is not null.
  template <class Visit>
  void each(page_id p, unsigned char* row, Visit&& visit) const {
    for (const page_piece& piece : pieces_) {
      visit(row ? row : piece.base + idx(p) * piece.page_stride, piece.bytes);
      if (row) row += piece.bytes;
    }
  }
  std::span<const page_piece> pieces() const { return pieces_; }

 private:
  std::vector<page_piece> pieces_;
  idx pages_ = 0, bytes_ = 0;
};

}  // namespace kvilt::inline KVILT_ABI
