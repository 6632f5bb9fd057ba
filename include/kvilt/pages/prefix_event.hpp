#pragma once

#include <kvilt/pages/token_hash.hpp>

#include <cstdint>
#include <span>

namespace kvilt::inline KVILT_ABI {

/// A full page got a name or lost it: what a router needs to know which prefixes are where.
struct prefix_event {
  enum class kind : unsigned char { stored, removed };
  kind what;
  page_id page;
  std::uint64_t name, before;           // of the prefix with this page and without it, see `token_hash`
  std::span<const token_id> tokens;     // of the page
  std::span<const std::uint64_t> keys;  // of the root: tenant, adapter, digests
  page_id page_before;                  // that the prefix without this page ends at; -1: the empty one
};

/// Called with each event, in order. Does not call who calls it.
struct prefix_hook {
  void* self = nullptr;
  void (*call)(void* self, const prefix_event& event) = nullptr;
};

/// What prompts found, in tokens; each prompt counts once, when its sequence is opened.
struct prefix_statistics {
  idx asked = 0;               // in prompts
  idx hit = 0;                 // of these, in pages held
  idx copied = 0;              // and in rows of a page that holds other tokens besides
  idx missed_granularity = 0;  // that stood in such a page and were not copied
  idx missed_capacity = 0;     // in full pages stored again that were evicted lately, as far as that is remembered
  idx stored_pages = 0;
  idx evicted_pages = 0;
  friend bool operator==(const prefix_statistics&, const prefix_statistics&) = default;
};

}  // namespace kvilt::inline KVILT_ABI
