#pragma once

#include <kvilt/pages/page_group.hpp>
#include <kvilt/pages/token_hash.hpp>

#include <span>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// Called where a `page_manager` is destroyed while sequences are open or prefixes pinned: how many are open, and how many
/// pages of the first group are used.
struct left_hook {
  void* self = nullptr;
  void (*call)(void* self, idx sequences, idx pages) = nullptr;
};

/// How large a `page_manager` is to be.
struct manager_shape {
  int page_tokens = 16;
  int sequences = 1;               // open at one time
  std::vector<page_group> groups;  // the first keeps all tokens: its pages name the prefixes. A model of windows alone
                                   // puts before them a group of pages without bytes
  left_hook on_left = {};
};

/// What an engine says of a prompt.
struct prompt_options {
  std::span<const std::uint64_t> keys = {};  // tenant, adapter, digests of images: who differs in one shares nothing
  int priority = 0;                          // 0 to 7, for policies that heed it
  idx computed = 1;   // last tokens that are not taken from the cache: a model runs on one or more
  bool asked = true;  // counts in the statistics and as a hit, and may be preempted, see `last_opened`: false for who
                      // opens it ahead of the one that asks
};

/// A sequence that was opened, and how many tokens of its prompt it has already.
struct opened_sequence {
  sequence name;
  idx tokens = 0;
};

namespace detail {

inline const manager_shape& checked(const manager_shape& s) {
  expects(!s.groups.empty() && s.groups[0].window == 0, "the first group keeps all tokens, and there is one");
  expects(s.page_tokens > 0, "pages of ", s.page_tokens, " tokens");
  for (const page_group& g : s.groups) {
    page_pool::check(g.pages);
    group_span(g, s.page_tokens);
  }
  expects(s.sequences >= 0, s.sequences, " sequences");
  return s;
}

inline constexpr int priorities = 8;

inline void check(const prompt_options& o) {
  expects(o.priority >= 0 && o.priority < priorities, "a prompt has priority ", o.priority, "; there are 0 to ",
          priorities - 1);
  expects(o.computed >= 0, "the last ", o.computed, " tokens of a prompt are to be computed");
}

}  // namespace detail
}  // namespace kvilt::inline KVILT_ABI
