// expect: kvilt: where V is a part of K's records it is copied from a view of the same kind
#include <kvilt/kvilt.hpp>

// Values of their own have no place in records of which V is a part.

using latent = kvilt::policy<kvilt::paged<16>, kvilt::q8<96>, kvilt::prefix<kvilt::q8<96>, 64>>;
#ifdef KVILT_COMPILE_FAIL_CONTROL
using source = latent;
#else
using source = kvilt::policy<kvilt::paged<16>, kvilt::fp16<96>, kvilt::fp16<64>>;
#endif

void copy(const kvilt::cache<source>& from, const kvilt::cache<latent>& to, const kvilt::row_copy& what,
          std::span<unsigned char> workspace) {
  kvilt::copy_rows(kvilt::host(), from.view(0), to.view(0), {&what, 1}, workspace);
}
