#include "support/catch.hpp"

#include <kvilt/core/types.hpp>

#include <cstdint>
#include <type_traits>
#include <vector>

namespace {

using namespace kvilt;

}  // namespace

TEST_CASE("types: an extent is fixed in its type or held as a value", "[core]") {
  STATIC_REQUIRE(extent<64>::get() == 64);
  STATIC_REQUIRE(extent<64>(128).get() == 64);
  STATIC_REQUIRE(std::is_empty_v<extent<64>>);
  STATIC_REQUIRE(extent<dynamic>(40).get() == 40);
  STATIC_REQUIRE(extent<dynamic>().get() == 0);
}

TEST_CASE("types: packed rows lie side by side", "[core]") {
  std::vector<float> data(2 * 3 * 8);
  const rows<float> r = packed_rows(data.data(), 3, 8);
  CHECK(r.heads == 3);
  for (int token = 0; token < 2; ++token)
    for (int head = 0; head < 3; ++head) CHECK(r.at(token, head) - data.data() == (token * 3 + head) * 8);
}

TEST_CASE("types: rows take a fused buffer's strides, in 64 bits", "[core]") {
  std::vector<float> data(100);
  const rows<float> padded{data.data(), 40, 12, 2};
  CHECK(padded.at(2, 1) - data.data() == 92);
  // NOTE: nothing is read; only the distance counts.
  const char first = 0;
  const rows<const char> huge{&first, idx(1) << 20, 0, 1};
  CHECK(reinterpret_cast<std::intptr_t>(huge.at(idx(1) << 12, 0)) - reinterpret_cast<std::intptr_t>(&first) ==
        idx(1) << 32);
}

TEST_CASE("types: a log-sum-exp without memory is false", "[core]") {
  std::vector<float> data(6);
  CHECK_FALSE(bool(natural_lse{}));
  const natural_lse lse{data.data(), 3};
  CHECK(bool(lse));
  CHECK(&lse.at(1, 2) == &data[5]);
}

TEST_CASE("types: two openings of one slot are different sequences", "[core]") {
  CHECK(sequence{1, 2} == sequence{1, 2});
  CHECK_FALSE(sequence{1, 2} == sequence{1, 3});
  CHECK_FALSE(sequence{} == sequence{0, 0});
}
