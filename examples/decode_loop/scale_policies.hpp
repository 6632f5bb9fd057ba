#pragma once

#include "listing.hpp"

#include <kvilt/kvilt.hpp>

namespace example {

// Scales that are known before the first token, for both, for K alone and for V alone.
template <class Format>
auto calibrated_list(const std::string& name, scale_of which) {
  using namespace kvilt;
  return std::tuple{
      named_calibrated<policy<contiguous, Format>>(name, which),
      named_calibrated<policy<contiguous, Format, fp16<>>>(name + "_fp16", which),
      named_calibrated<policy<contiguous, fp16<>, Format>>("fp16_" + name, which),
  };
}

// Whose scale a number of 8 bits has: its token's, its head's or the whole tensor's. On request.
inline auto scale_list() {
  using namespace kvilt;
  return on_request(std::tuple_cat(
      std::tuple{
          named<policy<contiguous, q8<>, fp16<>>>("int8_fp16"),
          named<policy<contiguous, fp16<>, q8<>>>("fp16_int8"),
          named<policy<contiguous, e4m3<>, fp16<>>>("e4m3_fp16"),
          named<policy<contiguous, fp16<>, e4m3<>>>("fp16_e4m3"),
      },
      calibrated_list<q8_static<>>("int8_head", scale_of::head),
      calibrated_list<q8_static<>>("int8_tensor", scale_of::tensor),
      calibrated_list<e4m3_static<>>("e4m3_head", scale_of::head),
      calibrated_list<e4m3_static<>>("e4m3_tensor", scale_of::tensor)));
}

}  // namespace example
