#include "subject.cuh"

void bench::add_q8_fixed(decode_entries& to) {
  add_fixed<kvilt::q8<128>>(to);
}
