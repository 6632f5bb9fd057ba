#pragma once

#include "listing.hpp"

#include <kvilt/kvilt.hpp>

namespace example {

inline auto ring_list() {
  using namespace kvilt;
  return std::tuple{
      listed<ring<fp16<>, fp16<>, 256, 4>>("ring256_s4_fp16"),
      listed<ring<q8<>, q8<>, 256, 4>>("ring256_s4_int8"),
      on_request(listed<ring<fp16<>, fp16<>, 256>>("ring256_fp16")),
      on_request(listed_streaming<ring<fp16<>, fp16<>, 256, 4>>("ring256_s4_fp16_streaming")),
  };
}

}  // namespace example
