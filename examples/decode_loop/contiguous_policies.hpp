#pragma once

#include "listing.hpp"

#include <kvilt/kvilt.hpp>

namespace example {

inline auto contiguous_list() {
  using namespace kvilt;
  return std::tuple{
      listed<policy<contiguous, fp32<>>>("fp32"),
      listed<policy<contiguous, fp16<>>>("fp16"),
      listed<policy<contiguous, bf16<>>>("bf16"),
      listed<policy<contiguous, e4m3<>>>("e4m3"),
      listed<policy<contiguous, q8<>>>("int8"),
      listed<policy<contiguous, rotated<q8<>>>>("int8_rot"),
      listed<policy<contiguous, q8<>, q4<>>>("int8_int4"),
      listed<policy<contiguous, q4<>>>("int4"),
      listed<policy<contiguous, rotated<q4<>>>>("int4_rot"),
      on_request(listed<policy<contiguous, q8<dynamic, 32>>>("int8_g32")),
  };
}

}  // namespace example
