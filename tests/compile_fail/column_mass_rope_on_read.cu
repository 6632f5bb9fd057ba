// expect: RoPE on read has no kernel
#include <kvilt/kvilt.cuh>

// Column sums of keys that are turned when they are read, on a GPU.

using namespace kvilt;

#ifdef KVILT_COMPILE_FAIL_CONTROL
using positions = text_positions;
#else
using positions = rope_on_read;
#endif

void run(const device_step& s, rows<const float> q, natural_lse lse, rows<float> mass) {
  using body = segment<contiguous, interval<part::body, keep_all>, fp16<64>>;
  column_mass(gpu(), attention<causal, positions>(), make_view<memory_space::device>(2, body{}), s, q, lse, mass);
}
