#pragma once

#include <kvilt/pages/page_cache.hpp>

#include <span>
#include <utility>
#include <variant>

namespace kvilt::inline KVILT_ABI::detail {

/// Where an owner's pages come from: a pool, or one whose pages keep what they hold for prompts that begin alike.
class page_source {
 public:
  /// `named_tokens`: of a page, by which it may be named; 0: none ever is, and nothing is kept for it.
  page_source(idx pages, int named_tokens) : pages_(make(pages, named_tokens)) {}

  const page_pool& pool() const {
    const page_cache<>* const named = names();
    return named ? named->pool() : std::get<page_pool>(pages_);
  }
  page_cache<>* names() { return std::get_if<page_cache<>>(&pages_); }
  const page_cache<>* names() const { return std::get_if<page_cache<>>(&pages_); }

  /// Pages that can be taken: of what is cached the policy says which is to go.
  idx available() const { return pool().free() + pool().cached(); }
  /// Whether nobody may write into a page but into a copy of it: `holders` have it, or it has a name.
  bool kept(page_id p, idx holders) const { return holders > 1 || pool().named(p); }
  bool shared(page_id p) const { return kept(p, pool().holders(p)); }

  void take(std::span<page_id> pages) {
    if (page_cache<>* const named = names())
      named->take(pages);
    else
      std::get<page_pool>(pages_).take(pages);
  }
  page_id take() {
    page_id p = -1;
    take({&p, 1});
    return p;
  }
  void hold(page_id p) {
    if (page_cache<>* const named = names())
      named->hold({&p, 1}, false);
    else
      std::get<page_pool>(pages_).hold(p);
  }
  /// Pages of one table from entry `first` on, the last first; those below 0 are none.
  void give(std::span<const page_id> pages, idx first) {
    if (page_cache<>* const named = names()) return named->give(pages, 0, 0, first);
    for (std::size_t i = pages.size(); i-- > 0;)
      if (pages[i] >= 0) std::get<page_pool>(pages_).give(pages[i]);
  }

 private:
  using either = std::variant<page_pool, page_cache<>>;
  static either make(idx pages, int named_tokens) {
    if (named_tokens > 0) return either(std::in_place_type<page_cache<>>, pages, named_tokens);
    return either(std::in_place_type<page_pool>, pages);
  }

  either pages_;
};

}  // namespace kvilt::inline KVILT_ABI::detail
