// expect: kvilt: a cache with page tables by head is in host memory
#include <kvilt/kvilt.hpp>

using namespace kvilt;

#ifdef KVILT_COMPILE_FAIL_CONTROL
constexpr memory_space space = memory_space::host;
#else
constexpr memory_space space = memory_space::device;
#endif

int run(const cache<policy<paged_by_head<16>, fp16<64>>, space>& kv) {
  return kv.free_sequences();
}
