#include "subject.cuh"

void bench::add_q8_dims(decode_entries& to) {
  using namespace kvilt;
  add_pages_of_16<q8<64>, q8<80>, q8<96>, q8<256>>(to);
}
