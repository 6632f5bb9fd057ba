#pragma once

#include <kvilt/core/types.hpp>
#include <kvilt/pages/prefix_index.hpp>

#include <cstdint>
#include <vector>

namespace kvilt::inline KVILT_ABI::detail {

/// How far a sequence is filled. NOTE: small, and apart from all else that is known of it: a step of decoding touches
/// this and the token that it writes.
struct filling {
  filling() = default;
  filling(idx tokens, idx reserved)
      : length(std::uint32_t(tokens)), room(std::uint32_t(reserved)), edge(std::uint32_t(tokens)) {}

  void advance(idx tokens) {
    length += std::uint32_t(tokens);
    next += tokens;
  }

  std::uint32_t length = 0;  // tokens
  std::uint32_t room = 0;    // that may be there before the next `reserve`
  std::uint32_t edge = 0;    // up to here they go to `next` and on
  std::uint32_t seat = 0;    // among the sequences of the last step that named it
  idx next = 0;              // among the tokens of all pages
};

/// Its pages in the group that names them.
struct named_table {
  std::vector<page_id> pages;
  prefix_end end;  // of the first `stored` pages
  idx stored = 0;
  int priority = 0;
};

}  // namespace kvilt::inline KVILT_ABI::detail
