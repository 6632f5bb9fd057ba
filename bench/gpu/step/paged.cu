#include "filled_cache.cuh"

void bench::add_paged_caches(step_entries& to) {
  using namespace kvilt;
  add_cache<policy<paged<16>, q8<128>>>(to);
  add_cache<policy<paged<16>, e4m3<128>>>(to);
  add_cache<policy<paged<16>, q4<128>>>(to);
}
