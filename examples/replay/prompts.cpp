#include "engine.hpp"
#include "eviction_names.hpp"

#include <kvilt/pages/page_cache.hpp>

#include <algorithm>
#include <span>
#include <vector>

namespace example {
namespace {

using kvilt::idx;
using kvilt::page_id;
using kvilt::token_id;

// Costs are in positions of tokens; a page here is a block of them.
template <class Eviction>
Eviction made(idx pages) {
  if constexpr (requires { Eviction(pages, kvilt::prefill_cost{}); })
    return Eviction(pages, kvilt::prefill_cost{kvilt::prefill_cost{}.balance / double(block_tokens)});
  else
    return Eviction(pages);
}

// A page has one token: a block's name.
template <class Eviction>
class block_cache {
 public:
  block_cache(idx capacity, idx most_blocks)
      : capacity_(capacity), cache_(capacity + most_blocks, 1, made<Eviction>(capacity + most_blocks)) {}

  // Returns how many blocks there were.
  idx pass(const request& r) {
    const std::vector<token_id> names(r.blocks.begin(), r.blocks.end());
    std::vector<page_id> pages;
    const kvilt::prefix_hit hit = cache_.find(root_, names, pages);
    cache_.hold(pages, true);
    pages.resize(names.size());
    const std::span<page_id> fresh = std::span(pages).subspan(std::size_t(hit.pages));
    cache_.take(fresh);
    for (std::size_t i = std::size_t(hit.pages); i < pages.size(); ++i) cache_.write_tokens(pages[i], 0, &names[i], 1);
    kvilt::prefix_end end = hit.end;
    cache_.store(end, fresh);
    cache_.give(pages, r.priority);
    cache_.evict(std::max(cache_.pool().cached() - capacity_, idx(0)));
    return hit.pages;
  }

 private:
  idx capacity_;
  kvilt::page_cache<Eviction> cache_;
  kvilt::prefix_end root_ = cache_.open_root({});
};

}  // namespace

outcome replay_prompts(const trace& t, const std::string& policy, std::int64_t capacity) {
  idx longest = 0, all = 0;
  for (const request& r : t) {
    longest = std::max(longest, idx(r.blocks.size()));
    all += idx(r.blocks.size());
  }
  const idx kept = capacity < 0 ? all : std::min(idx(capacity), all);  // more than there are change nothing
  return with_eviction(policy, [&]<class Eviction>(std::type_identity<Eviction>) {
    block_cache<Eviction> cache(kept, longest);
    outcome o;
    for (const request& r : t) {
      const idx hit = cache.pass(r);
      ++o.requests;
      o.blocks_asked += idx(r.blocks.size());
      o.blocks_hit += hit;
      o.tokens_asked += r.input;
      o.tokens_hit += std::min(hit * block_tokens, r.input);
    }
    return o;
  });
}

}  // namespace example
