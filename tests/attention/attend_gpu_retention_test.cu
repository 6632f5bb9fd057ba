#include "support/attend_gpu.cuh"

#include <kvilt/position/rope.hpp>

// Windows and rings, with and without sinks.

namespace {

using namespace kvilt;
using support::check_attention;

// Keeps every second token where it is: no two rows follow each other.
struct every_second {
  static constexpr bool ordered = true;
  KVILT_HD constexpr idx count(lengths n, int, int) const { return (n.after + 1) / 2; }
  KVILT_HD constexpr kept_row at(lengths, int, int, idx i) const { return {2 * i, 2 * i, 1}; }
  KVILT_HD constexpr idx slot(lengths, int, int, idx position) const { return position % 2 == 0 ? position : -1; }
  KVILT_HD constexpr bool sees(idx, idx) const { return true; }
};
static_assert(every_second().slot({}, 0, 0, 4) == 4 && every_second().slot({}, 0, 0, 5) == -1);
// Sees the same of a cache that keeps all.
struct even_tokens {
  KVILT_HD constexpr bool keep(const where& w) const { return w.k_position % 2 == 0 && w.k_position <= w.q_position; }
};

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

TEST_CASE("attend: pages of one head on the device", "[attention][gpu]") {
  support::require_gpu();
  check_attention<bfloat16, bfloat16>(2, policy<paged_by_head<16>, bf16<128>, bf16<128>>());
  check_attention(4, policy<paged_by_head<3>, q8<80>, q4<96>, keep_all, 2, 5>());
}

TEST_CASE("attend: rows that do not follow each other on the device", "[attention][gpu]") {
  support::require_gpu();
  using text_type = support::filled_pages<paged<64>, bf16<64>>;
  const support::attend_shape shape{"every second token", 2, 4, {{300, 1}, {41, 3}, {16, 1}, {1, 1}}};
  const text_type text({}, {}, 64, shape);
  support::trial<float, float, text_type, even_tokens> all(text, text_type::kept({}, {}, 64), shape);
  const support::answers right = all.run();
  REQUIRE(right.wrong == "");

  const auto body = all.view().first();
  const segment<paged<64>, every_second, bf16<64>, bf16<64>> seg{body.layout, {}, body.k, body.v, body.planes};
  const auto view = make_view<memory_space::device>(2, seg);
  const device_batch batch = all.batch().said();
  const support::device_array<unsigned char> workspace(
      workspace_bytes(gpu(), view, batch.size, batch.q_heads, batch.most_queries));
  const device_step step = plan(gpu(), view, batch, workspace.span());
  all.poison();
  attention{causal{}}(gpu(), view, step, all.q().read(), all.out().rows(), all.lse());
  const support::answers got = all.collect(idx(right.lse.size()) / shape.q_heads());
  REQUIRE(got.wrong == "");
  REQUIRE(got.out.size() == right.out.size());
  for (std::size_t i = 0; i < got.out.size(); ++i) REQUIRE(std::abs(got.out[i] - right.out[i]) < 1e-3);
  for (std::size_t i = 0; i < got.lse.size(); ++i) REQUIRE(std::abs(got.lse[i] - right.lse[i]) < 1e-3);
}
