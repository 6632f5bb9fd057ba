#pragma once

#include "listing.hpp"

#include <kvilt/kvilt.hpp>

namespace example {

// What takes fewer bits, or spends them otherwise: on request.
inline auto narrow_list() {
  using namespace kvilt;
  using int4_rot = rotated<q4<>>;
  using int4_g32 = q4<dynamic, 32>;
  using int2_g32 = q2<dynamic, 32>;
  return on_request(std::tuple{
      named<policy<contiguous, e5m2<>>>("e5m2"),
      named<policy<contiguous, int4_g32>>("int4_g32"),
      named<policy<paged<16>, q4<>, q4<>, keep_all, 4, 64>>("paged16_int4_s4_t64"),
      named<policy<paged<16>, int4_rot, int4_rot, keep_all, 4, 0>>("paged16_int4_rot_s4"),
      named<policy<paged<16>, int4_rot, int4_rot, keep_all, 0, 64>>("paged16_int4_rot_t64"),
      named<policy<paged<16>, int4_rot, int4_rot, keep_all, 64, 256>>("paged16_int4_rot_s64_t256"),
      // K less the mean of its tile of 64 tokens.
      named<policy<paged<64>, rotated<centred<q4<>>>, int4_rot, keep_all, 4, 64>>("paged64_int4_mean_rot_s4_t64"),
      // KIVI: K by channel over tiles of 32 tokens, V by token.
      named<policy<paged<32>, q4_channel<>, q4<>, keep_all, 0, 32>>("paged32_kivi4_t32"),
      named<policy<paged<32>, q4_channel<>, int4_g32, keep_all, 4, 32>>("paged32_kivi4_g32_s4_t32"),
      named<policy<paged<32>, q2_channel<>, int2_g32, keep_all, 0, 128>>("paged32_kivi2_g32_t128"),
      named<policy<paged<32>, q2_channel<>, int2_g32, keep_all, 4, 128>>("paged32_kivi2_g32_s4_t128"),
      named<policy<paged<16>, rotated<q3<>>, rotated<q3<>>, keep_all, 4, 64>>("paged16_int3_rot_s4_t64"),
      named<policy<paged<16>, int4_rot, rotated<int2_g32>, keep_all, 4, 64>>("paged16_int4_int2_rot_s4_t64"),
  });
}

}  // namespace example
