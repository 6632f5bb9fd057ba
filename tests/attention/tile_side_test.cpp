#include "support/catch.hpp"

#include <kvilt/attention/host/kernels.hpp>
#include <kvilt/attention/host/tile.hpp>
#include <kvilt/format/integer.hpp>
#include <kvilt/format/static_scale.hpp>

using namespace kvilt;

TEST_CASE("tile: a part's fp16 scales leave those of an fp32 part alone", "[attention]") {
  using detail::tile_side;
  const detail::host_kernels& kernels = detail::kernels_for(best_instructions());
  tile_side side;
  std::vector<unsigned char> codes(64 * 64);
  const std::uint16_t half = to_fp16(0.5f);
  const float full = 3.0f;
  const auto plane_of = [](const void* base, idx stride) {
    return plane{const_cast<unsigned char*>(static_cast<const unsigned char*>(base)), 0, 0, stride};
  };
  side.take(q8<16>(), plane_of(codes.data(), 16), plane_of(&half, 0), {0, 0, 4}, 0, 0, 4, nullptr);
  side.take(e4m3_static<16>(), plane_of(codes.data(), 16), plane_of(&full, 0), {0, 4, 60}, 0, 4, 60, nullptr);
  const detail::row_params first = side.widened(kernels, q8<16>::plain);
  CHECK(first.scale[0] == 0.5f);
  CHECK(first.scale[3] == 0.5f);
  const detail::row_params second = side.widened(kernels, e4m3_static<16>::plain);
  for (int t = 4; t < tile_side::tokens; ++t) CHECK(second.scale[t] == 3.0f);
}
