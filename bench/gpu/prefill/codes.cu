#include "../decode/subject.cuh"
#include "entries.cuh"

void bench::add_prefill_codes(decode_entries& to) {
  add_pages_of_16<kvilt::e4m3<128>, kvilt::q8<128>, kvilt::q4<128>>(to);
}
