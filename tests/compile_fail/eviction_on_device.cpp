// expect: kvilt: tokens are evicted from caches in host memory
#include <kvilt/kvilt.hpp>

using namespace kvilt;

#ifdef KVILT_COMPILE_FAIL_CONTROL
constexpr memory_space space = memory_space::host;
#else
constexpr memory_space space = memory_space::device;
#endif

int run(const cache<policy<paged<16>, fp16<64>, fp16<64>, listed>, space>& kv) {
  return kv.free_sequences();
}
