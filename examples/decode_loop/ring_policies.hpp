#pragma once

#include "listing.hpp"

#include <kvilt/kvilt.hpp>

namespace example {

inline auto ring_list() {
  using namespace kvilt;
  return std::tuple{
      named<ring<fp16<>, fp16<>, 256, 4>>("ring256_s4_fp16"),
      named<ring<q8<>, q8<>, 256, 4>>("ring256_s4_int8"),
      on_request(named<ring<fp16<>, fp16<>, 256>>("ring256_fp16")),
      on_request(named_streaming<ring<fp16<>, fp16<>, 256, 4>>("ring256_s4_fp16_streaming")),
  };
}

}  // namespace example
