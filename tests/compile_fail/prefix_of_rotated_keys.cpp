// expect: kvilt: the first numbers of a rotated row are not those of the row
#include <kvilt/kvilt.hpp>

// V as the first numbers of rows that were rotated as a whole.

#ifdef KVILT_COMPILE_FAIL_CONTROL
using k_format = kvilt::q8<96>;
#else
using k_format = kvilt::rotated<kvilt::q8<96>>;
#endif

using kv = kvilt::policy<kvilt::paged<16>, k_format, kvilt::prefix<k_format, 64>>;

int main() {
  return int(sizeof(kvilt::view_of<kvilt::memory_space::host, kv>) == 0);
}
