// expect: host_view
#include <kvilt/kvilt.hpp>

// A view of device memory in a verb of the host.

using namespace kvilt;

#ifdef KVILT_COMPILE_FAIL_CONTROL
constexpr memory_space space = memory_space::host;
#else
constexpr memory_space space = memory_space::device;
#endif

void run(const step& s, rows<const float> k, rows<const float> v) {
  using body = segment<contiguous, interval<part::body, keep_all>, fp16<64>>;
  append(host(), make_view<space>(2, body{}), s, k, v);
}
