// expect: device_side
#include <kvilt/kvilt.hpp>

// A cache in device memory is given the host, where a stream belongs.

using namespace kvilt;

#ifdef KVILT_COMPILE_FAIL_CONTROL
constexpr memory_space space = memory_space::host;
#else
constexpr memory_space space = memory_space::device;
#endif

sequence run(cache<policy<paged<16>, fp16<64>>, space>& kv, sequence s) {
  return kv.fork(host(), s);
}
