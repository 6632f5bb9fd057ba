// expect: kvilt: a page has at least one row
#include <kvilt/kvilt.hpp>

#ifdef KVILT_COMPILE_FAIL_CONTROL
constexpr int rows = 1;
#else
constexpr int rows = 0;
#endif

int run() {
  return kvilt::paged<rows>().page_size();
}
