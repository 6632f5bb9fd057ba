#include "support/session.hpp"

// Formats beside those of the covering, each in some layout and under some retention: a ragged batch of prefill, decode
// and chunks, every answer against the oracle.

namespace {

using namespace kvilt;
using namespace support;

template <class Policy>
void run(const Policy& p, int group) {
  constexpr int lengths[] = {0, 1, 2, 15, 16, 17, 40};
  const int sequences = int(std::size(lengths));
  const auto owner = make_subject(
      p,
      {.layers = 1, .kv_heads = 2, .sequences = sequences, .tokens = sequences * 80, .max_length = 80, .max_step = 9},
      0xff);
  session s(*owner, group, 1, 3);
  std::vector<portion> prefill, decode, chunks;
  for (int i = 0; i < sequences; ++i) {
    s.open(i);
    prefill.push_back({i, lengths[i]});
    decode.push_back({i, 1});
    chunks.push_back({i, i % 4 == 0 ? 1 : i % 4 == 1 ? 7 : 0});
  }
  s.grow_by(host(), prefill);
  s.grow_by(host(), decode);
  s.grow_by(host(), chunks);
}

}  // namespace

TEST_CASE("attend: e5m2", "[attention]") {
  run(policy<paged<16>, e5m2<>, e4m3<>>(e5m2<>(72), e4m3<>(64)), 3);
  run(policy<contiguous, e4m3<>, e5m2<>, keep_all, 4, 16>(e4m3<>(64), e5m2<>(40)), 1);
  run(policy<paged<3>, e4m3<128, 32>, e5m2<96, 32>, window<dynamic, 2>>({}, {}, window<dynamic, 2>(11)), 4);
}

TEST_CASE("attend: 3 and 2 bits", "[attention]") {
  run(policy<paged<16>, q3<>, q2<>>(q3<>(72), q2<>(40)), 2);
  run(policy<paged<19>, rotated<q3<>>, q2<dynamic, 32>, keep_all, 4, 16>(rotated<q3<>>(80), q2<dynamic, 32>(96)), 5);
  run(policy<contiguous, q2<dynamic, 64>, q3<dynamic, 32>, keep_all, 0, 7>(q2<dynamic, 64>(128), q3<dynamic, 32>(64)),
      1);
  run(ring<q3<64>, q3<64, 64>, 13, 3>(), 8);
}

TEST_CASE("attend: groups of 64", "[attention]") {
  run(policy<paged<2>, q8<dynamic, 64>, q4<dynamic, 64>>(q8<dynamic, 64>(192), q4<dynamic, 64>(128)), 3);
  run(policy<contiguous, rotated<q4<64, 64>>, q8<128, 64>, window<9>, 2, 5>(), 2);
}
