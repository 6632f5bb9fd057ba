// expect: kvilt: a view has at most 3 segments
#include <kvilt/kvilt.hpp>

using namespace kvilt;
using body = segment<contiguous, interval<part::body, keep_all>, fp16<64>>;

#ifdef KVILT_COMPILE_FAIL_CONTROL
int run() {
  return make_view<memory_space::host>(2, body{}, body{}, body{}).kv_heads();
}
#else
int run() {
  return make_view<memory_space::host>(2, body{}, body{}, body{}, body{}).kv_heads();
}
#endif
