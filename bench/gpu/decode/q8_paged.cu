#include "subject.cuh"

void bench::add_q8_paged(decode_entries& to) {
  add_paged<kvilt::q8<128>>(to);
}
