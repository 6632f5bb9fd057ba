// expect: kvilt: what is left of an evicted text is not saved
#include <kvilt/tiers/save.hpp>

#ifdef KVILT_COMPILE_FAIL_CONTROL
using rule = kvilt::keep_all;
#else
using rule = kvilt::listed;
#endif

using kept = kvilt::policy<kvilt::paged<16>, kvilt::fp16<64>, kvilt::fp16<64>, rule>;

void run(const kvilt::cache<kept>& owner, kvilt::sequence s) {
  kvilt::save(kvilt::host(), owner, s, "saved");
}
