#include "support/attend_gpu.cuh"

// 16-bit sinks and tails around a body: views of two and three segments.

namespace {

using namespace kvilt;
using support::check_attention;

}  // namespace

TEST_CASE("attend: 16-bit sinks and tails around a body on the device", "[attention][gpu]") {
  support::require_gpu();
  check_attention<bfloat16, bfloat16>(3, policy<paged<16>, q4<128>, q4<128>, keep_all, 4, 64>());
  check_attention(4, policy<contiguous, rotated<q8<96>>, q8<64>, keep_all, 0, 7, bf16>());
  check_attention(5, policy<paged<64>, e4m3<64>, e4m3<64>, keep_all, 20>());
  check_attention<bfloat16, float>(6, policy<paged<1>, rotated<q4<64>>, rotated<q4<64>>, keep_all, 3, 16, bf16>());
}

TEST_CASE("attend: 16-bit sinks and a tail in a window on the device", "[attention][gpu]") {
  support::require_gpu();
  using ringed = policy<contiguous, q8<64>, q8<64>, window<>, 3, 6>;
  for (const int width : {4, 30}) check_attention(width, ringed(64, window<>(width)));
  check_attention(7, policy<paged<16>, q4<80>, q8<80>, window<50>, 4, 16>());
}
