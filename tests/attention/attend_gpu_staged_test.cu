#include "../../examples/my_policy/my_policy.hpp"
#include "support/attend_gpu.cuh"

// Formats whose rows are decoded before they are multiplied.

namespace {

using namespace kvilt;
using support::check_attention;

// What `mine::fading` means.
support::tried<mine::fading> fading(float strength) {
  support::tried<mine::fading> t{{strength}};
  t.means.score = [strength](const where& w, double s) {
    return s - double(strength) * std::log(1 + double(w.q_position - w.k_position));
  };
  return t;
}

}  // namespace

TEST_CASE("attend: 32-bit rows on the device", "[attention][gpu]") {
  support::require_gpu();
  check_attention(0, policy<contiguous, fp32<64>>());
  check_attention<bfloat16, bfloat16>(1, policy<paged<16>, fp32<40>, bf16<96>>());
}

TEST_CASE("attend: codes in groups on the device", "[attention][gpu]") {
  support::require_gpu();
  check_attention(2, policy<paged<16>, q8<128, 32>>());
  check_attention<float16, float>(3, policy<contiguous, rotated<q4<64, 32>>, q8<96>>());
}

TEST_CASE("attend: formats without plain codes on the device", "[attention][gpu]") {
  support::require_gpu();
  check_attention(4, policy<paged<19>, q3<64>>());
  check_attention(5, policy<paged<3>, q8_static<80>>());
  check_attention<float, bfloat16>(6, policy<contiguous, fp16<64>, q2<64, 32>>());
}

TEST_CASE("attend: keys by channel on the device, under a 16-bit tail", "[attention][gpu]") {
  support::require_gpu();
  check_attention(7, policy<paged<64>, q4_channel<64>, q4<64>, keep_all, 4, 32>());
}

TEST_CASE("attend: the user's format, layout and variant on the device", "[attention][gpu]") {
  support::require_gpu();
  using mine::six_bit, mine::token_major;
  for (const int dim : {40, 128})
    check_attention(8 + dim, policy<token_major, six_bit>(six_bit{dim}, six_bit{dim}), fading(0.1f));
  check_attention(9, policy<token_major, bf16<64>>(), fading(0.2f));
}
