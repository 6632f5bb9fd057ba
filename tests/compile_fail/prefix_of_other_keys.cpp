// expect: kvilt: a prefix is V's format beside the K format that it names
#include <kvilt/kvilt.hpp>

// V as a part of records that K's format does not write.

#ifdef KVILT_COMPILE_FAIL_CONTROL
using k_format = kvilt::q8<96>;
#else
using k_format = kvilt::q4<96>;
#endif

using kv = kvilt::policy<kvilt::paged<16>, k_format, kvilt::prefix<kvilt::q8<96>, 64>>;

int main() {
  return int(sizeof(kvilt::view_of<kvilt::memory_space::host, kv>) == 0);
}
