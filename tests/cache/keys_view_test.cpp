#include "support/catch.hpp"

#include <kvilt/cache/device_tile.hpp>
#include <kvilt/kvilt.hpp>

namespace {

using namespace kvilt;

// Warps of a block with so many bytes of shared memory, of which each needs some.
int warps_of(int most, int need, int shared) {
  while (most > 1 && most * need > shared) most /= 2;
  return most;
}

// One plan is for kernels that read values and for those that do not: they have the same warps, and room for them.
template <class Policy>
void check_warps(int dims = 0) {
  using view_type = view_of<memory_space::device, Policy>;
  using keys_type = detail::keys_view<view_type>;
  using detail::warp_bytes, detail::warp_budget;
  for (const int rows : {8, 16, 32}) {
    const warp_bytes both = warp_bytes::of<view_type>(dims, rows), keys = warp_bytes::of<keys_type>(dims, rows);
    INFO(name_of(typename Policy::k_format()) << ", " << name_of(typename Policy::v_format()) << ", " << rows);
    CHECK(keys.warps == both.warps);
    CHECK(keys.decoded <= both.decoded);
    const int needs[] = {warp_budget<view_type>(dims, rows), warp_budget<keys_type>(dims, rows)};
    CHECK(warps_of(keys.warps, needs[1], warp_bytes::shared) >= warps_of(both.warps, needs[0], warp_bytes::shared));
  }
}

}  // namespace

TEST_CASE("keys_view: keys lie where they lay, and values have no bytes", "[cache]") {
  using kv = policy<paged<16>, q8<64>, q4<96>, keep_all, 4, 32>;
  cache<kv> owner({.layers = 1, .kv_heads = 3, .sequences = 1, .tokens = 64}, host_memory());
  const auto view = owner.view(0);
  const auto keys = detail::keys_of(view);
  CHECK(keys.kv_heads() == 3);
  CHECK(keys.k_dim() == 64);
  CHECK(keys.v_dim() == 96);
  std::vector<geometry> planes;
  view.each([&](const auto& seg) { planes.push_back(seg.planes); });
  std::size_t i = 0;
  keys.each([&](const auto& seg) {
    CHECK(seg.planes.k_codes == planes[i].k_codes);
    CHECK(seg.planes.k_params == planes[i++].k_params);
    CHECK(seg.v.code_bytes() + seg.v.param_bytes() == 0);
  });
  CHECK(i == 3);
}

TEST_CASE("keys_view: warps are as many without values as with them", "[cache]") {
  check_warps<policy<contiguous, bf16<128>>>();
  check_warps<policy<paged<16>, q8<128>>>();
  check_warps<policy<paged<16>, q4<128>>>();
  check_warps<policy<paged<16>, bf16<256>, q4<64>>>();
  check_warps<policy<paged<16>, bf16<128>, q4<128>>>();
  check_warps<policy<paged<16>, e4m3<64>, fp16<256>>>();
  check_warps<policy<contiguous, fp32<64>>>();
  check_warps<policy<paged<16>, q8<64>, q2<64, 32>>>();
  check_warps<policy<paged<16>, q4<128>, q4<128>, keep_all, 4, 64>>();
  for (const int dims : detail::dim_steps) check_warps<policy<paged<>, q8<>>>(dims);
}
