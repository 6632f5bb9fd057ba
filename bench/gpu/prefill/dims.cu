#include "../decode/subject.cuh"
#include "entries.cuh"

void bench::add_prefill_dims(decode_entries& to) {
  add_pages_of_16<kvilt::bf16<64>, kvilt::bf16<256>>(to);
}
