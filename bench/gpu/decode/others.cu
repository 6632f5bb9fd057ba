#include "subject.cuh"

void bench::add_others(decode_entries& to) {
  using namespace kvilt;
  add_pages_of_16<fp16<128>, q4<128>, q8<128, 32>>(to);  // the last through the staged path
}
