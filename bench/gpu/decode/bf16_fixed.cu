#include "subject.cuh"

void bench::add_bf16_fixed(decode_entries& to) {
  add_fixed<kvilt::bf16<128>>(to);
}
