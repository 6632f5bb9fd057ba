#include "subject.cuh"

void bench::add_e4m3_fixed(decode_entries& to) {
  add_fixed<kvilt::e4m3<128>>(to);
}
