// expect: kvilt: all segments of a view must keep K in one rotation and V in one rotation
#include <kvilt/kvilt.hpp>

// One segment's keys are rotated and the other's are not: no query fits both.

using namespace kvilt;

template <class K>
using body = segment<contiguous, interval<part::body, keep_all>, K, fp16<64>>;

#ifdef KVILT_COMPILE_FAIL_CONTROL
using sinks = body<rotated<fp16<64>>>;
#else
using sinks = body<fp16<64>>;
#endif

int run() {
  return make_view<memory_space::host>(2, sinks{}, body<rotated<q4<64>>>{}).kv_heads();
}
