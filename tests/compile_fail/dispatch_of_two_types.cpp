// expect: kvilt: what is called for each policy of a list returns the same type for each
#include <kvilt/kvilt.hpp>

using my =
    kvilt::policy_list<kvilt::policy<kvilt::paged<16>, kvilt::q8<64>>, kvilt::policy<kvilt::contiguous, kvilt::q4<64>>>;

int main() {
  kvilt::dispatch<my>("paged16:q8", 64, [](const auto& p) {
#ifdef KVILT_COMPILE_FAIL_CONTROL
    return p.k.dim();
#else
    return p.k;
#endif
  });
}
