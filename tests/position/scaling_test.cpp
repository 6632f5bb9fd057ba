#include "support/catch.hpp"

#include <kvilt/position/scaling.hpp>

#include <cmath>
#include <limits>
#include <vector>

namespace {

using namespace kvilt;

constexpr double pi = 3.14159265358979323846;
constexpr auto pairs = rope_pairs::half_split;

/// Radians per token of pair `i` as a table holds them.
double theta(const rope_table& table, int i) {
  return std::ldexp(double(rope(table).turns[i]), -64) * 2 * pi;
}

struct known {
  int pair;
  double theta;
};

// Every value is that of ROPE_INIT_FUNCTIONS in transformers 5.24.0 (modeling_rope_utils.py), its tensors in double
// precision.
void check_known(const rope_table& table, double magnitude, const std::vector<known>& values) {
  const rope r = table;
  CHECK(r.magnitude == Approx(magnitude).epsilon(1e-7));
  for (const known& k : values) {
    INFO("pair " << k.pair);
    CHECK(theta(table, k.pair) == Approx(k.theta).epsilon(1e-10));
  }
}

std::vector<float> short_factors() {
  std::vector<float> f;
  for (int i = 0; i < 48; ++i) f.push_back(1 + float(i) / 64);
  return f;
}
std::vector<float> long_factors() {
  std::vector<float> f;
  for (int i = 0; i < 48; ++i) f.push_back(1 + float(i * i) / 32);
  return f;
}

struct stranger {
  double theta(rope_basis b, int pair) const { return pair == 2 ? slow : b.theta(pair); }
  double slow = 0;
};
static_assert(rope_scaling<stranger> && !rope_scaling<int>);

}  // namespace

TEST_CASE("scaling: linear, as another implementation has it", "[position]") {
  check_known(rope_table(128, 1e4, pairs, linear_scaling{4}), 1,
              {{0, 0.25},
               {1, 0.216491080840016},
               {16, 0.025},
               {24, 0.00790569415042095},
               {42, 0.000592843426415414},
               {63, 2.88695496172365e-05}});
}

TEST_CASE("scaling: dynamic NTK, as another implementation has it", "[position]") {
  check_known(rope_table(128, 1e4, pairs, dynamic_ntk_scaling{2, 4096, 6000}), 1,
              {{0, 1},
               {1, 0.856975607513186},
               {16, 0.08462435455049},
               {31, 0.00835645883068713},
               {42, 0.00152994332882374},
               {63, 5.98429530527331e-05}});
  check_known(rope_table(64, 1e4, pairs, dynamic_ntk_scaling{4, 2048, 16384}), 1,
              {{0, 1},
               {1, 0.672706882561918},
               {8, 0.0419379278580951},
               {16, 0.00175878979303079},
               {24, 7.37599994576793e-05},
               {31, 4.59834976608043e-06}});
  // Not scaled while the text is short.
  for (const double length : {0.0, 100.0, 4096.0})
    check_known(rope_table(128, 1e4, pairs, dynamic_ntk_scaling{2, 4096, length}), 1,
                {{0, 1}, {1, 0.865964323360065}, {32, 0.01}, {63, 0.000115478198468946}});
}

TEST_CASE("scaling: YaRN, as another implementation has it", "[position]") {
  // Qwen 2.5.
  check_known(rope_table(128, 1e6, pairs, yarn_scaling{4, 32768}), 1.138629436111989,
              {{0, 1},
               {1, 0.805842187761482},
               {16, 0.0316227766016838},
               {24, 0.0053753214907901},
               {31, 0.00080295972754523},
               {32, 0.000602941176470588},
               {40, 4.44569852509731e-05},
               {63, 3.1023444018793e-07}});
  // DeepSeek V2 Lite: mscale 0.707, mscale_all_dim 0.5.
  const std::vector<known> deepseek = {{0, 1},
                                       {10, 0.0562341325190349},
                                       {12, 0.0268793601114312},
                                       {16, 0.0055},
                                       {21, 0.00041499039849079},
                                       {28, 7.90569415042095e-06},
                                       {31, 3.33380358040831e-06}};
  yarn_scaling lite{40, 4096};
  lite.attention_factor = yarn_magnitude(40, 0.707) / yarn_magnitude(40, 0.5);
  check_known(rope_table(64, 1e4, pairs, lite), 1.064468903941252, deepseek);
  // DeepSeek V3: both are 1.
  lite.attention_factor = yarn_magnitude(40) / yarn_magnitude(40);
  check_known(rope_table(64, 1e4, pairs, lite), 1, deepseek);
  // gpt-oss: the limits are not rounded to whole pairs.
  yarn_scaling oss{32, 4096};
  oss.whole = false;
  check_known(rope_table(64, 150'000, pairs, oss), 1.3465735902799727,
              {{0, 1},
               {8, 0.0508132748154615},
               {10, 0.0193350011265404},
               {12, 0.00679495948973222},
               {15, 0.00105260210138634},
               {16, 0.000456483919223241},
               {20, 1.81883366816896e-05},
               {31, 3.02351142811921e-07}});
}

TEST_CASE("scaling: Llama 3, as another implementation has it", "[position]") {
  check_known(rope_table(128, 5e5, pairs, llama3_scaling{}), 1,
              {{0, 1},
               {1, 0.814617233856545},
               {24, 0.00729266473721711},
               {31, 0.000856751412919632},
               {32, 0.000524846160992955},
               {40, 3.42810219595259e-05},
               {63, 3.06892598891451e-07}});
  check_known(rope_table(64, 5e5, pairs, llama3_scaling{32}), 1,
              {{0, 1},
               {1, 0.663601237696088},
               {15, 0.00129054792820926},
               {16, 0.000429556796559368},
               {20, 8.57025548988148e-06},
               {31, 9.41830672543491e-08}});
}

TEST_CASE("scaling: LongRoPE, as another implementation has it", "[position]") {
  const std::vector<float> brief = short_factors(), far = long_factors();
  check_known(rope_table(96, 1e4, pairs, longrope_scaling{brief, far, 32, 4096, 4096}), 1.1902380714238083,
              {{0, 1},
               {1, 0.812705659340818},
               {16, 0.0371327106689022},
               {24, 0.00727272727272727},
               {47, 6.98538469839907e-05}});
  check_known(rope_table(96, 1e4, pairs, longrope_scaling{brief, far, 32, 4096, 4097}), 1.1902380714238083,
              {{0, 1},
               {1, 0.800391937229594},
               {16, 0.00515732092623642},
               {24, 0.000526315789473684},
               {47, 1.72998148487795e-06}});
  const rope_table unstretched(96, 1e4, pairs, longrope_scaling{brief, far, 1, 4096, 0});
  const rope_table given(96, 1e4, pairs, longrope_scaling{brief, far, 32, 4096, 0, 1.5});
  CHECK(rope(unstretched).magnitude == 1);
  CHECK(rope(given).magnitude == 1.5f);
}

TEST_CASE("scaling: a proportion of the pairs turns, as another implementation has it", "[position]") {
  const rope_table table(512, 1e6, pairs, proportional_scaling{0.25});
  check_known(table, 1, {{0, 1}, {1, 0.947463525655375}, {64, 0}, {128, 0}, {255, 0}});
  CHECK(theta(table, 63) == Approx(std::pow(1e6, -126.0 / 512)).epsilon(1e-12));
}

TEST_CASE("scaling: NTK keeps the fastest pair and stretches the slowest by its factor", "[position]") {
  for (const int dims : {4, 64, 128})
    for (const double factor : {1.0, 2.0, 8.0}) {
      const rope_table plain(dims, 1e4, pairs), scaled(dims, 1e4, pairs, ntk_scaling{factor});
      CHECK(theta(scaled, 0) == theta(plain, 0));
      CHECK(theta(scaled, dims / 2 - 1) * factor == Approx(theta(plain, dims / 2 - 1)).epsilon(1e-11));
      for (int i = 1; i + 1 < dims / 2; ++i)  // geometric between
        CHECK(theta(scaled, i) / theta(scaled, i - 1) == Approx(theta(scaled, 1)).epsilon(1e-9));
    }
}

TEST_CASE("scaling: a factor of 1 changes nothing", "[position]") {
  const rope_table plain(128, 1e4, pairs);
  const auto is_plain = [&](const rope_table& table) {
    bool same = rope(table).magnitude == 1;
    for (int i = 0; i < 64; ++i) same &= std::abs(theta(table, i) / theta(plain, i) - 1) < 1e-10;
    return same;
  };
  CHECK(is_plain({128, 1e4, pairs, linear_scaling{1}}));
  CHECK(is_plain({128, 1e4, pairs, ntk_scaling{1}}));
  CHECK(is_plain({128, 1e4, pairs, yarn_scaling{1, 4096}}));
  CHECK(is_plain({128, 1e4, pairs, llama3_scaling{1}}));
  CHECK(is_plain({128, 1e4, pairs, proportional_scaling{}}));
}

TEST_CASE("scaling: the magnitude is that of rows that turn, and a shift leaves it", "[position]") {
  const rope_table table(8, 1e4, pairs, yarn_scaling{16, 4096});
  std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  rope(table).apply(x.data(), 0);
  const float magnitude = float(0.1 * std::log(16.0) + 1);
  for (int i = 0; i < 8; ++i) CHECK(x[std::size_t(i)] == Approx(magnitude * float(i + 1)));
  CHECK(x[8] == 9);
  rope(table).shift(x.data(), 0);
  CHECK(x[0] == Approx(magnitude));
}

TEST_CASE("scaling: YaRN's limits may meet, and lie outside of the row", "[position]") {
  // theta of pair 0 and 1 of 4 numbers is 1 and 0.01: over 16 tokens neither turns once, over 10^9 both 32 times.
  const auto scaled = [](double trained) {
    const rope_table table(4, 1e4, pairs, yarn_scaling{8, trained});
    return std::vector<double>{theta(table, 0), theta(table, 1) * 100};
  };
  CHECK(scaled(2)[0] == Approx(1));  // the first pair is the limit: it stays
  CHECK(scaled(2)[1] == Approx(1 / 8.0));
  CHECK(scaled(16)[1] == Approx(1 / 8.0));
  CHECK(scaled(1e9)[0] == Approx(1));
  CHECK(scaled(1e9)[1] == Approx(1));
}

TEST_CASE("scaling: a user's own is taken, and held to what a table can say", "[position]") {
  const rope_table table(8, 1e4, pairs, stranger{0.125});
  CHECK(theta(table, 2) == Approx(0.125));
  CHECK(theta(table, 1) == Approx(0.1));
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (const double wrong : {-1.0, inf, std::nan("")})
    CHECK_THROWS_WITH(rope_table(8, 1e4, pairs, stranger{wrong}), support::containing("RoPE's pair 2 turns by "));
}

TEST_CASE("scaling: what makes no sense is refused by name", "[position]") {
  using support::containing;
  const auto made = [](const auto& scaling, int dims = 8, double base = 1e4) {
    return rope_table(dims, base, pairs, scaling);
  };
  CHECK_THROWS_WITH(made(linear_scaling{0}), containing("a factor of 0"));
  CHECK_THROWS_WITH(made(linear_scaling{0.5}), containing("1 or more is needed"));
  CHECK_THROWS_WITH(made(ntk_scaling{std::nan("")}), containing("a factor of nan"));
  CHECK_THROWS_WITH(made(ntk_scaling{2}, 2), containing("RoPE over 2 numbers has no base"));
  CHECK_THROWS_WITH(made(dynamic_ntk_scaling{2, 0, 10}), containing("trained over 0"));
  CHECK_THROWS_WITH(made(yarn_scaling{2}), containing("trained over 0"));
  CHECK_THROWS_WITH(made(yarn_scaling{2, 4096, 1, 32}), containing("pairs of 1"));
  CHECK_THROWS_WITH(made(yarn_scaling{2, 4096}, 8, 1), containing("YaRN with base 1"));
  CHECK_THROWS_WITH(made(llama3_scaling{8, 4, 4}), containing("between 4"));
  const std::vector<float> four(4, 1.0f), three(3, 1.0f), zero(4, 0.0f);
  CHECK_THROWS_WITH(made(longrope_scaling{four, three, 2, 4096, 0}), containing("4 short and 3 long factors; 4"));
  CHECK_THROWS_WITH(made(longrope_scaling{zero, four, 2, 4096, 0}), containing("LongRoPE's short factor 0 is 0"));
  CHECK_THROWS_WITH(made(proportional_scaling{1.5}), containing("a share of 1.5"));
  CHECK_THROWS_WITH(made(linear_scaling{2}, 7), containing("over 7 numbers"));
  CHECK_THROWS_WITH(made(linear_scaling{2}, 8, 0), containing("base 0"));
}

TEST_CASE("scaling: numbers that are not positive and finite are refused, whichever they are", "[position]") {
  using support::containing;
  constexpr double inf = std::numeric_limits<double>::infinity();
  const auto made = [](const auto& scaling, double base = 1e4) { return rope_table(8, base, pairs, scaling); };
  const std::vector<float> fine(4, 1.0f);
  for (const double wrong : {inf, -inf, std::nan(""), -1.0, 0.0}) {
    INFO(wrong);
    const std::string stretched = "RoPE is stretched by a factor of ", trained = "RoPE was trained over ";
    CHECK_THROWS_WITH(made(linear_scaling{wrong}), containing(stretched));
    CHECK_THROWS_WITH(made(ntk_scaling{wrong}), containing(stretched));
    CHECK_THROWS_WITH(made(dynamic_ntk_scaling{wrong, 4096, 0}), containing(stretched));
    CHECK_THROWS_WITH(made(yarn_scaling{wrong, 4096}), containing(stretched));
    CHECK_THROWS_WITH(made(llama3_scaling{wrong}), containing(stretched));
    CHECK_THROWS_WITH(made(longrope_scaling{fine, fine, wrong, 4096, 0}), containing(stretched));
    CHECK_THROWS_WITH(made(proportional_scaling{1, wrong}), containing(stretched));
    if (wrong <= 1)
      CHECK(yarn_magnitude(wrong) == 1);  // nothing is stretched
    else
      CHECK_THROWS_WITH(yarn_magnitude(wrong), containing(stretched));
    CHECK_THROWS_WITH(made(dynamic_ntk_scaling{2, wrong, 0}), containing(trained));
    CHECK_THROWS_WITH(made(yarn_scaling{2, wrong}), containing(trained));
    CHECK_THROWS_WITH(made(llama3_scaling{2, 1, 4, wrong}), containing(trained));
    CHECK_THROWS_WITH(made(longrope_scaling{fine, fine, 2, wrong, 0}), containing(trained));
    CHECK_THROWS_WITH(made(yarn_scaling{2, 4096, wrong, 1}), containing("YaRN keeps pairs of "));
    CHECK_THROWS_WITH(made(yarn_scaling{2, 4096, 32, wrong}), containing("YaRN keeps pairs of 32"));
    CHECK_THROWS_WITH(made(llama3_scaling{2, wrong, 4}), containing("Llama 3's RoPE interpolates"));
    CHECK_THROWS_WITH(made(llama3_scaling{2, 1, wrong}), containing("Llama 3's RoPE interpolates"));
    CHECK_THROWS_WITH(made(linear_scaling{2}, wrong), containing("RoPE with base "));
    CHECK_THROWS_WITH(rope_table(8, wrong, pairs), containing("RoPE with base "));
    std::vector<float> factors = fine;
    factors[3] = float(wrong);
    CHECK_THROWS_WITH(rope_table(8, 1e4, pairs, factors), containing("RoPE's factor 3 is "));
    CHECK_THROWS_WITH(made(longrope_scaling{factors, fine, 2, 4096, 0}), containing("LongRoPE's short factor 3"));
    CHECK_THROWS_WITH(made(longrope_scaling{fine, factors, 2, 4096, 0}), containing("LongRoPE's long factor 3"));
    // 0 is a length, a weight, a share, and asks for the paper's magnitude.
    const auto refuses = [&](auto make, const std::string& text) {
      if (wrong == 0)
        CHECK_NOTHROW(make());
      else
        CHECK_THROWS_WITH(make(), containing(text));
    };
    refuses([&] { return made(dynamic_ntk_scaling{2, 4096, wrong}); }, "RoPE is made for a text of ");
    refuses([&] { return made(longrope_scaling{fine, fine, 2, 4096, wrong}); }, "RoPE is made for a text of ");
    refuses([&] { return made(longrope_scaling{fine, fine, 2, 4096, 0, wrong}); }, "RoPE multiplies what it turns by ");
    yarn_scaling yarn{2, 4096};
    yarn.attention_factor = wrong;
    refuses([&] { return made(yarn); }, "RoPE multiplies what it turns by ");
    refuses([&] { return yarn_magnitude(2, wrong); }, "YaRN's magnitude has a weight of ");
    refuses([&] { return made(proportional_scaling{wrong}); }, "a share of ");
  }
  // Finite parts of what is not.
  CHECK_THROWS_WITH(made(ntk_scaling{1e308}), containing("stretched by a factor of 1e+308 is not finite"));
  CHECK_THROWS_WITH(made(dynamic_ntk_scaling{1e200, 2, 1e200}), containing("is not finite"));
}

TEST_CASE("scaling: a magnitude of a user's own is held to what rows can bear", "[position]") {
  struct loud : stranger {
    double magnitude() const { return factor; }
    double factor = 0;
  };
  loud scaling;
  for (const double wrong : {0.0, -1.0, 1e300, 1e-300, std::nan(""), HUGE_VAL}) {
    scaling.factor = wrong;
    CHECK_THROWS_WITH(rope_table(8, 1e4, pairs, scaling), support::containing("RoPE multiplies what it turns by "));
  }
  scaling.factor = 1.25;
  const rope_table table(8, 1e4, pairs, scaling);
  CHECK(rope(table).magnitude == 1.25f);
}
