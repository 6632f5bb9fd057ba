// expect: kvilt: a text from which tokens were evicted by head is not saved
#include <kvilt/kvilt.hpp>
#include <kvilt/tiers/save.hpp>

using namespace kvilt;

#ifdef KVILT_COMPILE_FAIL_CONTROL
using layout = paged<16>;
#else
using layout = paged_by_head<16>;
#endif

void run(const cache<policy<layout, fp16<64>, fp16<64>, listed>>& kv, sequence s) {
  save(host(), kv, s, "text.kv");
}
