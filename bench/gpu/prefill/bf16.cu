#include "../decode/subject.cuh"
#include "entries.cuh"

void bench::add_prefill_16_bit(decode_entries& to) {
  add_entry<kvilt::policy<kvilt::contiguous, kvilt::bf16<128>>>(to);
  add_entry<kvilt::policy<kvilt::paged<16>, kvilt::bf16<128>>>(to);
}
