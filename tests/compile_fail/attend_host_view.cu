// expect: no instance of "run_attention".*memory_space::host
#include <kvilt/kvilt.cuh>

// Attention on a GPU over a view of host memory.

using namespace kvilt;

#ifdef KVILT_COMPILE_FAIL_CONTROL
constexpr memory_space space = memory_space::device;
#else
constexpr memory_space space = memory_space::host;
#endif

void run(const device_step& s, rows<const float> q, rows<float> out) {
  using body = segment<contiguous, interval<part::body, keep_all>, fp16<64>>;
  attention{causal{}}(gpu(), make_view<space>(2, body{}), s, q, out);
}
