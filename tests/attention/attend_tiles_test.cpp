#include "support/tiled_text.hpp"

// The library's tile formats in the layouts and behind the tails that policies give them, every answer against the
// oracle.

namespace {

using namespace kvilt;
using namespace support;

template <class Policy>
void run(const Policy& p, idx tokens) {
  tiled_text<Policy> text(p, tokens);
  while (text.length() + 5 <= tokens) REQUIRE(text.step(5, 5) == "");
  CHECK(text.in_body() >= Policy::sinks + Policy::tile);
}

}  // namespace

TEST_CASE("attend: keys by channel, in pages and side by side", "[attention]") {
  run(policy<paged<32>, q4_channel<>, q4<dynamic, 32>, keep_all, 0, 16>(q4_channel<>(40), q4<dynamic, 32>(32)), 90);
  run(policy<paged<64>, q2_channel<64>, q2<64, 32>, keep_all, 4, 32>(), 110);
  run(policy<contiguous, q2_channel<>, q2<>, keep_all, 3, 1>(q2_channel<>(72), q2<>(24)), 80);
  run(policy<paged<>, q4_channel<dynamic, 8>, fp16<>, keep_all, 0, 5>(q4_channel<dynamic, 8>(24), fp16<>(16), {},
                                                                      paged<>(24)),
      60);
}

TEST_CASE("attend: keys less their tile's mean", "[attention]") {
  run(policy<paged<64>, centred<q4<>>, q4<>, keep_all, 4, 16>(centred<q4<>>(40), q4<>(32)), 150);
  run(policy<contiguous, centred<rotated<q4<64>>, 16>, rotated<q4<64>>, keep_all, 0, 20>(), 80);
  run(policy<paged<16>, rotated<centred<q4<>, 8>>, rotated<q8<>>, keep_all, 2, 7>(rotated<centred<q4<>, 8>>(48),
                                                                                  rotated<q8<>>(40)),
      60);
}

TEST_CASE("attend: tiles in steps that fail, are repeated or accepted in part", "[attention]") {
  in_disorder(policy<paged<16>, q4_channel<24, 16>, q2<64, 32>, keep_all, 2, 9>(), 80);
  in_disorder(policy<contiguous, rotated<centred<q4<24>, 16>>, q4<16>, keep_all, 0, 3>(), 80);
}

TEST_CASE("attend: rows longer than a centred format takes are refused by name", "[attention]") {
  using kv = policy<contiguous, centred<q4<>>, q4<>, keep_all, 0, 8>;
  CHECK_THROWS_WITH(plan_bytes(kv(1032), {.layers = 1, .kv_heads = 1, .tokens = 64}),
                    containing("K rows have 1032 numbers; the format takes 1024"));
  CHECK_NOTHROW(plan_bytes(kv(1024), {.layers = 1, .kv_heads = 1, .tokens = 64}));
}

TEST_CASE("attend: what tiles weigh", "[attention]") {
  const cache_shape shape{.layers = 2, .kv_heads = 3, .tokens = 64 * 8};
  // KIVI in groups of 32: 3 bits a number at 2 bits, whatever the head dim.
  CHECK(plan_bytes(policy<paged<64>, q2_channel<128>, q2<128, 32>, keep_all, 0, 32>(), shape).bytes_per_token ==
        2 * 3 * 2 * (128 * 3 / 8));
  // A mean costs 16 / 64 bits a number.
  CHECK(plan_bytes(policy<paged<64>, centred<q4<128>>, q4<128>, keep_all, 4, 64>(), shape).bytes_per_token ==
        2 * 3 * (2 * (64 + 4) + 128 * 2 / 64));
}
