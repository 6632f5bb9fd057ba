#include "subject.cuh"

void bench::add_bf16_paged(decode_entries& to) {
  add_paged<kvilt::bf16<128>>(to);
}
