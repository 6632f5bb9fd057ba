#include "entry.hpp"

namespace example {

std::vector<policy_entry> paged_policies() {
  using namespace kvilt;
  return {
      entry<policy<paged<16>, fp16<>>>("paged16_fp16"),
      entry<policy<paged<16>, q8<>>>("paged16_int8"),
      entry<policy<paged<16>, rotated<q8<>>, rotated<q8<>>, keep_all, 4, 64>>("paged16_int8_rot_s4_t64"),
      entry<policy<paged<16>, q8<>, q4<>, keep_all, 4, 64>>("paged16_int8_int4_s4_t64"),
      entry<policy<paged<16>, rotated<q4<>>, rotated<q4<>>, keep_all, 4, 64>>("paged16_int4_rot_s4_t64"),
      on_request(entry<policy<paged<16>, bf16<>>>("paged16_bf16")),
      on_request(entry<policy<paged<16>, fp16<>, fp16<>, window<256, 4>>>("paged16_fp16_window256_s4")),
  };
}

}  // namespace example
