#include "subject.cuh"

void bench::add_bf16_dims(decode_entries& to) {
  using namespace kvilt;
  add_pages_of_16<bf16<64>, bf16<80>, bf16<96>, bf16<256>>(to);
}
