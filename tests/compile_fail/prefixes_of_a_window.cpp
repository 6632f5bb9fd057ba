// expect: kvilt: prompts find nothing in a cache with a window, eviction, 16-bit sinks or places by arithmetic
#include <kvilt/kvilt.hpp>

#ifdef KVILT_COMPILE_FAIL_CONTROL
using kept = kvilt::policy<kvilt::paged<16>, kvilt::fp16<>>;
#else
using kept = kvilt::policy<kvilt::paged<16>, kvilt::fp16<>, kvilt::fp16<>, kvilt::window<32>>;
#endif

kvilt::idx ask(kvilt::cache<kept>& cache, std::span<const kvilt::token_id> prompt) {
  return cache.open(prompt).tokens;
}
