#include "subject.cuh"

void bench::add_e4m3_paged(decode_entries& to) {
  add_paged<kvilt::e4m3<128>>(to);
}
