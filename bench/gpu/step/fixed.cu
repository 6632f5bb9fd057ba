#include "filled_cache.cuh"

void bench::add_fixed_caches(step_entries& to) {
  using namespace kvilt;
  add_cache<policy<contiguous, fp16<128>>>(to);
  add_cache<policy<contiguous, q8<128>>>(to);
}
