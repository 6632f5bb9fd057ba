// expect: host_view
#include <kvilt/kvilt.hpp>

// Attention of the host over a view of device memory.

using namespace kvilt;

#ifdef KVILT_COMPILE_FAIL_CONTROL
constexpr memory_space space = memory_space::host;
#else
constexpr memory_space space = memory_space::device;
#endif

void run(const step& s, rows<const float> q, rows<float> out) {
  using body = segment<contiguous, interval<part::body, keep_all>, fp16<64>>;
  attention{causal{}}(host(), make_view<space>(2, body{}), s, q, out);
}
