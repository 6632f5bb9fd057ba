// expect: no matching|constraints not satisfied
#include <kvilt/kvilt.hpp>

using namespace kvilt;

#ifdef KVILT_COMPILE_FAIL_CONTROL
using layout = paged_by_head<16>;
#else
using layout = paged<16>;
#endif

void run(cache<policy<layout, fp16<64>, fp16<64>, listed>>& kv, sequence s, std::span<const int> sizes) {
  kv.keep(host(), s, {}, sizes);
}
