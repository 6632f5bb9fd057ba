// expect: kvilt: a window's sinks and the 16-bit sinks are the same tokens
#include <kvilt/kvilt.hpp>

#ifdef KVILT_COMPILE_FAIL_CONTROL
constexpr int exact = 4;
#else
constexpr int exact = 8;
#endif

using kv = kvilt::policy<kvilt::contiguous, kvilt::q8<64>, kvilt::q8<64>, kvilt::window<256, 4>, exact>;
int run() {
  return kv::sinks;
}
