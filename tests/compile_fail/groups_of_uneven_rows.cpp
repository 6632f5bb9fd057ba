// expect: kvilt: groups are a multiple of 32 numbers.*kvilt: groups divide the row
#include <kvilt/kvilt.hpp>

// Vectors of codes have one scale each, and no group is cut short.
#if defined(KVILT_COMPILE_FAIL_CONTROL)
using even = kvilt::q8<96, 32>;
using whole = kvilt::q4<96, 96>;
#else
using even = kvilt::q8<96, 48>;
using whole = kvilt::q4<96, 64>;
#endif

int main() {
  return even().group() + whole().group() == 128 ? 0 : 1;
}
