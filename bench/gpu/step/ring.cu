#include "filled_cache.cuh"

void bench::add_ring_caches(step_entries& to) {
  using namespace kvilt;
  add_cache<ring<fp16<128>, fp16<128>, 4096>>(to);
}
