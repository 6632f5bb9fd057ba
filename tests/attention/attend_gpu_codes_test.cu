#include "support/attend_gpu.cuh"

// Formats whose codes are multiplied as they lie.

namespace {

using namespace kvilt;
using support::check_attention;

}  // namespace

TEST_CASE("attend: 16-bit rows on the device", "[attention][gpu]") {
  support::require_gpu();
  check_attention<bfloat16, bfloat16>(0, policy<contiguous, bf16<128>>());
  check_attention<float16, float>(1, policy<paged<16>, fp16<64>>());
  check_attention<bfloat16, float>(2, policy<paged<1>, bf16<40>, fp16<72>>());
  check_attention(3, policy<paged<3>, fp16<192>, bf16<128>>());
}

TEST_CASE("attend: 8-bit rows on the device", "[attention][gpu]") {
  support::require_gpu();
  check_attention<bfloat16, float>(4, policy<paged<19>, e4m3<128>>());
  check_attention(5, policy<contiguous, e5m2<96>, e4m3<64>>());
  check_attention<float, bfloat16>(6, policy<paged<64>, q8<128>>());
  check_attention<float16, float16>(7, policy<paged<16>, rotated<q8<80>>, q8<112>>());
  check_attention<bfloat16, bfloat16>(8, policy<paged<1>, q8<64>, e5m2<64>>());
  check_attention(9, policy<paged<16>, e4m3_static<64>>());
  check_attention(10, policy<paged<16>, q8<256>>());
}

TEST_CASE("attend: 4-bit rows on the device", "[attention][gpu]") {
  support::require_gpu();
  check_attention<float16, float>(11, policy<paged<16>, q4<128>>());
  check_attention<bfloat16, bfloat16>(12, policy<contiguous, q8<72>, rotated<q4<64>>>());
}

TEST_CASE("attend: values in the rows of keys on the device", "[attention][gpu]") {
  support::require_gpu();
  check_attention<bfloat16, float>(13, policy<paged<16>, bf16<128>, prefix<bf16<128>, 64>>());
  check_attention<bfloat16, float>(14, policy<contiguous, q8<64>, prefix<q8<64>, 32>>());
}
