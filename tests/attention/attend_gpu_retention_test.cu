#include "support/attend_gpu.cuh"

#include <kvilt/position/rope.hpp>

// Windows and rings, with and without sinks.

namespace {

using namespace kvilt;
using support::check_attention;

}  // namespace

TEST_CASE("attend: windows on the device", "[attention][gpu]") {
  support::require_gpu();
  for (const int width : {1, 16, 65}) check_attention<bfloat16, bfloat16>(width, ring<bf16<64>>(64, window<>(width)));
  for (const int width : {5, 40})
    check_attention(width, policy<paged<16>, q8<128>, q8<128>, window<>>(128, window<>(width)));
  check_attention(1, policy<paged<3>, e4m3<96>, q8<80>, window<20>>());
}

TEST_CASE("attend: windows with sinks on the device", "[attention][gpu]") {
  support::require_gpu();
  for (const int width : {9, 48})
    check_attention<float16, float>(width, ring<q8<80>, q8<80>, dynamic, 4>(80, window<dynamic, 4>(width)));
  check_attention(2, policy<paged<19>, bf16<128>, bf16<128>, window<33, 5>>());
}

TEST_CASE("attend: sinks and window as one text on the device", "[attention][gpu]") {
  support::require_gpu();
  constexpr int dim = 64;
  const rope_table table(dim, 100.0, rope_pairs::half_split);
  const rope turn = table;
  support::tried<causal, cache_positions> t;
  t.positions = {turn};
  t.means.rope_base = 100;
  t.arrays = {{reinterpret_cast<const unsigned char*>(turn.turns), sizeof(turn.turns[0]) * dim / 2}};
  for (const int width : {12, 40})
    check_attention(width, ring<bf16<dim>, bf16<dim>, dynamic, 4>(dim, window<dynamic, 4>(width)), t);
  const rope_table wide(dim + 2, 100.0, rope_pairs::half_split);
  using kv = ring<bf16<dim>, bf16<dim>, dynamic, 4>;
  using text_type = support::filled_cache<kv>;
  const kv policy_of_text(dim, window<dynamic, 4>(12));
  const support::attend_shape shape{"refused", 2, 4, {{30, 1}}};
  const text_type text(policy_of_text, shape);
  const support::trial<float, float, text_type, causal, cache_positions> one(text, text_type::kept(policy_of_text),
                                                                             shape, t);
  CHECK_THROWS_WITH((attention<causal, cache_positions>({}, 0, {wide})(gpu(), one.view(), one.step(), one.q().read(),
                                                                       one.out().rows())),
                    support::containing("RoPE over 66 numbers of rows of 64"));
  check_attention(8, policy<paged<16>, rotated<q8<dim>>, q8<dim>, window<30>, 4>(), t);
}
