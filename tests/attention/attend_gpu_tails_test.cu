#include "support/attend_gpu.cuh"

// 16-bit sinks and tails around a body: views of two and three segments.

namespace {

using namespace kvilt;
using support::check_attention;

// Queries that see the first four tokens `gap` above the others, on the average.
template <class Policy>
void check_light(const Policy& policy, const support::prompt& of, float gap) {
  const support::attend_shape shape{"light tokens beside heavy ones", 2, 4, {of}};
  const support::filled_cache<Policy> text(policy, shape, {}, {}, 0xff, 4);
  support::attention_case c = support::case_of(text, text.kept(policy), shape, support::tried<>());
  c.q = support::random_tensor(5, c.q_rows(), shape.q_heads(), policy.k.dim()).data;
  for (float& x : c.q) x = 0.05f * x + gap / std::sqrt(float(policy.k.dim()));
  const support::trial<float, float, support::filled_cache<Policy>, causal> one(text, c);
  CHECK(one.wrong(one.run()) == "");
}

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

// The weights of quantised tokens have their values' scales in them: 2^-16 of those in 16 bit, in the coarsest.
TEST_CASE("attend: tokens that weigh little beside the first ones are not lost on the device", "[attention][gpu]") {
  support::require_gpu();
  for (const support::prompt& of : {support::prompt{8191, 1}, support::prompt{7700, 300}}) {
    check_light(policy<paged<16>, e5m2<64>, e5m2<64>, keep_all, 4, 64>(), of, 9);
    check_light(policy<paged<16>, e4m3<64>, e4m3<64>, keep_all, 4>(), of, 10);
    check_light(policy<contiguous, q8<64>, q4<64>, keep_all, 4, 16>(), of, 10);
  }
}
