#pragma once

#include "listing.hpp"

#include <kvilt/kvilt.hpp>

namespace example {

inline auto paged_list() {
  using namespace kvilt;
  return std::tuple{
      named<policy<paged<16>, fp16<>>>("paged16_fp16"),
      named<policy<paged<16>, q8<>>>("paged16_int8"),
      named<policy<paged<16>, rotated<q8<>>, rotated<q8<>>, keep_all, 4, 64>>("paged16_int8_rot_s4_t64"),
      named<policy<paged<16>, q8<>, q4<>, keep_all, 4, 64>>("paged16_int8_int4_s4_t64"),
      named<policy<paged<16>, rotated<q4<>>, rotated<q4<>>, keep_all, 4, 64>>("paged16_int4_rot_s4_t64"),
      on_request(named<policy<paged<16>, bf16<>>>("paged16_bf16")),
      on_request(named<policy<paged<16>, fp16<>, fp16<>, window<256, 4>>>("paged16_fp16_window256_s4")),
  };
}

}  // namespace example
