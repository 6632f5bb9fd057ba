#include "entry.hpp"

namespace example {

std::vector<policy_entry> ring_policies() {
  using namespace kvilt;
  return {
      entry<ring<fp16<>, fp16<>, 256, 4>>("ring256_s4_fp16"),
      entry<ring<q8<>, q8<>, 256, 4>>("ring256_s4_int8"),
      on_request(entry<ring<fp16<>, fp16<>, 256>>("ring256_fp16")),
      on_request(streaming_entry<ring<fp16<>, fp16<>, 256, 4>>("ring256_s4_fp16_streaming")),
  };
}

}  // namespace example
