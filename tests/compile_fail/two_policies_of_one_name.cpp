// expect: kvilt: two policies of a list have the same name and rows
#include <kvilt/kvilt.hpp>

using one = kvilt::policy<kvilt::paged<16>, kvilt::q8<>>;
#ifdef KVILT_COMPILE_FAIL_CONTROL
using other = kvilt::policy<kvilt::paged<16>, kvilt::q8<>, kvilt::q4<>>;
#else
using other = kvilt::policy<kvilt::paged<16>, kvilt::q8<>, kvilt::q8<>, kvilt::keep_all, 0, 0, kvilt::bf16>;
#endif

int main() {
  return kvilt::policy_list<one, other>::size;
}
