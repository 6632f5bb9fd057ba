#include "entry.hpp"

namespace example {

std::vector<policy_entry> contiguous_policies() {
  using namespace kvilt;
  return {
      entry<policy<contiguous, fp32<>>>("fp32"),
      entry<policy<contiguous, fp16<>>>("fp16"),
      entry<policy<contiguous, bf16<>>>("bf16"),
      entry<policy<contiguous, e4m3<>>>("e4m3"),
      entry<policy<contiguous, q8<>>>("int8"),
      entry<policy<contiguous, rotated<q8<>>>>("int8_rot"),
      entry<policy<contiguous, q8<>, q4<>>>("int8_int4"),
      entry<policy<contiguous, q4<>>>("int4"),
      entry<policy<contiguous, rotated<q4<>>>>("int4_rot"),
      on_request(entry<policy<contiguous, q8<dynamic, 32>>>("int8_g32")),
  };
}

}  // namespace example
