#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/math.hpp>
#include <kvilt/pages/page_pool.hpp>

namespace kvilt::inline KVILT_ABI {

/// Layers that keep the same tokens, with a pool of their own: a sequence has a page table in each group. A page holds
/// as many tokens in every group, of as many bytes as the engine says.
struct page_group {
  idx pages = 0;   // of its pool
  idx window = 0;  // tokens that a query sees, its own included, besides the sinks; 0: all
  idx sinks = 0;   // first tokens of a sequence that every query sees
  page_hook hook = {};
};

/// Rows to be copied, the first `rows` of page `from`, to page `to`. Moves are done in the order in which they are
/// reported, before the next verb that hands out pages, or where the engine queues its work, before all that it queues
/// after that verb.
struct page_move {
  int group = 0;
  page_id from = -1;
  page_id to = -1;
  int rows = 0;
  friend bool operator==(const page_move&, const page_move&) = default;
};

namespace detail {

/// Which pages of a sequence a group needs.
class group_span {
 public:
  group_span(const page_group& g, int page_tokens)
      : window_(g.window), sink_pages_(ceil_div(g.sinks, page_tokens)), page_tokens_(page_tokens) {
    expects(g.window >= 0 && g.sinks >= 0 && (g.sinks == 0 || g.window > 0), "a window of ", g.window,
            " tokens besides ", g.sinks, " sinks; a group without window has no sinks");
  }

  int page_tokens() const { return page_tokens_; }
  bool all() const { return window_ == 0; }
  /// Pages [0, sinks()) are needed at any length.
  idx sinks() const { return sink_pages_; }
  /// So are those from this one on when `length` tokens are there, for the query after them.
  idx first(idx length) const {
    return all() ? 0 : larger(sink_pages_, larger(length + 1 - window_, 0) / page_tokens_);
  }
  bool needs(idx page, idx length) const { return page < sink_pages_ || page >= first(length); }
  /// At most so many pages at one time, where `tokens` are reserved at once behind `length`.
  idx most(idx length, idx tokens) const {
    const idx pages = ceil_div(length + tokens, page_tokens_);
    return smaller(pages, smaller(first(length), sink_pages_) + pages - first(length));
  }

 private:
  idx window_, sink_pages_;
  int page_tokens_;
};

}  // namespace detail
}  // namespace kvilt::inline KVILT_ABI
