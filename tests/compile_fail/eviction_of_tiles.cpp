// expect: kvilt: tokens are evicted from token formats only
#include <kvilt/kvilt.hpp>

#ifdef KVILT_COMPILE_FAIL_CONTROL
using rule = kvilt::keep_all;
#else
using rule = kvilt::listed;
#endif

int run() {
  return kvilt::policy<kvilt::paged<64>, kvilt::q4_channel<64>, kvilt::q4<64>, rule, 0, 64>::tile;
}
