// expect: formats whose dims are known
#include <kvilt/kvilt.cuh>

// Shared memory for rows that are as long as a number at run time says.

using namespace kvilt;

#ifdef KVILT_COMPILE_FAIL_CONTROL
using format = bf16<64>;
#else
using format = bf16<>;
#endif

using body = segment<contiguous, interval<part::body, keep_all>, format>;
using block = block_attention<view<memory_space::device, body>, causal, bfloat16>;

std::size_t bytes() {
  return sizeof(block::shared_storage);
}
