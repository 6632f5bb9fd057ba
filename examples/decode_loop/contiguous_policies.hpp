#pragma once

#include "listing.hpp"

#include <kvilt/kvilt.hpp>

namespace example {

inline auto contiguous_list() {
  using namespace kvilt;
  return std::tuple{
      named<policy<contiguous, fp32<>>>("fp32"),
      named<policy<contiguous, fp16<>>>("fp16"),
      named<policy<contiguous, bf16<>>>("bf16"),
      named<policy<contiguous, e4m3<>>>("e4m3"),
      named<policy<contiguous, q8<>>>("int8"),
      named<policy<contiguous, rotated<q8<>>>>("int8_rot"),
      named<policy<contiguous, q8<>, q4<>>>("int8_int4"),
      named<policy<contiguous, q4<>>>("int4"),
      named<policy<contiguous, rotated<q4<>>>>("int4_rot"),
      on_request(named<policy<contiguous, q8<dynamic, 32>>>("int8_g32")),
  };
}

}  // namespace example
