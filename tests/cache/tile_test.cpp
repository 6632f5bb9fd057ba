#include "support/tiled_text.hpp"

namespace {

using namespace kvilt;
using namespace support;

// One byte a number and one scale for 4 tokens: about the simplest tile format that there can be.
template <int D = dynamic>
struct tile_of_4 : extent<D> {
  using extent<D>::extent;
  static constexpr int rows = 4;

  int dim() const { return this->get(); }
  int code_bytes() const { return rows * dim(); }
  int param_bytes() const { return int(sizeof(float)); }
  void encode(const float* x, row_ref to) const {
    float scale = 1e-20f;
    for (int i = 0; i < rows * dim(); ++i) scale = std::max(scale, std::abs(x[i]) / 127);
    std::memcpy(to.params, &scale, sizeof(scale));
    for (int i = 0; i < rows * dim(); ++i) to.codes[i] = static_cast<unsigned char>(int(x[i] / scale) + 128);
  }
  template <int N>
  void decode(row_ref from, int first, float (&out)[N]) const {
    float scale;
    std::memcpy(&scale, from.params, sizeof(scale));
    const unsigned char* codes = from.codes + from.row * dim() + first;
    for (int i = 0; i < N; ++i) out[i] = scale * float(int(codes[i]) - 128);
  }
};

template <class K, class V>
void each_policy(const K& k, const V& v) {
  in_steps(policy<paged<8>, K, V, keep_all, 0, 6>(k, v));
  in_steps(policy<paged<8>, K, V, keep_all, 2, 6>(k, v));
  in_steps(policy<paged<4>, K, V, keep_all, 3, 1>(k, v));
  in_steps(policy<contiguous, K, V, keep_all, 2, 6>(k, v));
  in_disorder(policy<paged<8>, K, V, keep_all, 2, 6>(k, v));
  in_disorder(policy<contiguous, K, V, keep_all, 0, 3>(k, v));
}

}  // namespace

TEST_CASE("tile: tokens go to the body by whole tiles, and answers are right at every length", "[cache]") {
  each_policy(tile_of_4<>(16), tile_of_4<>(24));
  each_policy(tile_of_4<>(16), q8<>(24));
  each_policy(fp32<>(24), tile_of_4<>(16));
  in_steps(policy<paged<8>, tile_of_4<16>, tile_of_4<16>, keep_all, 2, 6>());
}

TEST_CASE("tile: a sequence is cut between tiles, or in its tail", "[cache]") {
  using kv = policy<paged<8>, tile_of_4<>, tile_of_4<>, keep_all, 2, 6>;
  for (idx cut = 0; cut <= 40; ++cut) {
    tiled_text<kv> text(kv(16), 60);
    while (text.length() < 40) REQUIRE(text.step(5, 5) == "");
    const bool inside = cut > 2 && cut < text.in_body() && (cut - 2) % 4 != 0;
    INFO("cut to " << cut << ", " << text.in_body() << " tokens have left the tail");
    if (inside) {
      CHECK_THROWS_WITH(text.truncate(cut),
                        containing("is truncated to " + std::to_string(cut) + ", inside a tile of 4"));
      CHECK(text.length() == 40);
    } else {
      text.truncate(cut);
    }
    while (text.length() < 50) REQUIRE(text.step(2, 1) == "");
  }
}

TEST_CASE("tile: pages hold whole tiles", "[cache]") {
  using kv = policy<paged<>, tile_of_4<>, q8<>, keep_all, 0, 6>;
  CHECK_THROWS_WITH(
      plan_bytes(kv(tile_of_4<>(16), q8<>(16), {}, paged<>(6)), {.layers = 1, .kv_heads = 1, .tokens = 9}),
      containing("a page of 6 rows does not hold whole tiles of 4"));
}

TEST_CASE("tile: single rows are not appended to a tile format", "[cache]") {
  using body = segment<contiguous, interval<part::body, keep_all>, tile_of_4<>, fp32<>>;
  const tile_of_4<> k(16);
  const fp32<> v(16);
  std::vector<unsigned char> codes(16 * 16, 0xff), params(16, 0xff), values(16 * 64, 0xff);
  const auto before = std::tuple(codes, params, values);
  const geometry planes{
      {codes.data(), 256, 256, 64}, {params.data(), 16, 16, 4}, {values.data(), 1024, 1024, 64}, {}, 1};
  const auto foreign = make_view<memory_space::host>(1, body{{16}, interval<part::body, keep_all>(), k, v, planes});
  const tensor<float> rows = random_tensor(1, 3, 1, 16);
  CHECK_THROWS_WITH(append(host(), foreign, planned_step(host(), {4}, {3}, {}, 16, 16), rows.rows(), rows.rows()),
                    containing("sequence 0 appends to a tile format; its tokens come through a 16-bit tail"));
  CHECK(std::tuple(codes, params, values) == before);
  // Tiles that an engine has filled are read.
  append(host(), foreign, planned_step(host(), {4}, {0}, {}, 16, 16), rows.rows(), rows.rows());
  answer<> a(1, 1, 16);
  attention{causal{}}(host(), foreign, planned_step(host(), {0}, {0}, {1}, 16, 16), rows.rows(), a.out.rows());
}
