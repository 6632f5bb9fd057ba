#include "support/catch.hpp"
#include "support/random.hpp"

#include <kvilt/tiers/crc32c.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace {

using kvilt::crc32c;

std::uint64_t of(const std::vector<unsigned char>& bytes, std::uint64_t before = 0) {
  return crc32c::of(before, bytes.data(), bytes.size());
}

// The definition: a bit at a time.
std::uint32_t by_bits(const std::vector<unsigned char>& bytes) {
  std::uint32_t crc = ~0u;
  for (const unsigned char b : bytes)
    for (int bit = 0; bit < 8; ++bit) {
      const bool odd = (crc ^ b >> bit) & 1;
      crc = crc >> 1 ^ (odd ? 0x82f63b78u : 0);
    }
  return ~crc;
}

std::vector<unsigned char> random_bytes(std::uint64_t seed, std::size_t count) {
  std::vector<unsigned char> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<unsigned char>(support::mixed({seed, i}));
  return bytes;
}

}  // namespace

TEST_CASE("crc32c: the checks that RFC 3720 gives", "[tiers]") {
  CHECK(of({}) == 0);
  const char digits[] = "123456789";
  CHECK(of({digits, digits + 9}) == 0xe3069283u);
  CHECK(of(std::vector<unsigned char>(32, 0)) == 0x8a9136aau);
  CHECK(of(std::vector<unsigned char>(32, 0xff)) == 0x62a8ab43u);
  std::vector<unsigned char> up(32);
  for (std::size_t i = 0; i < up.size(); ++i) up[i] = static_cast<unsigned char>(i);
  CHECK(of(up) == 0x46dd794eu);
}

TEST_CASE("crc32c: the instruction and the tables are the definition, at any length", "[tiers]") {
  for (const std::size_t count : {1, 7, 8, 9, 63, 1535, 1536, 1537, 3072, 4096, 40001}) {
    const std::vector<unsigned char> bytes = random_bytes(count, count);
    INFO(count << " bytes");
    CHECK(of(bytes) == by_bits(bytes));
    CHECK(std::uint32_t(~kvilt::detail::crc_portable(~0u, bytes.data(), count)) == by_bits(bytes));
    // Behind others, wherever these end.
    const auto middle = bytes.begin() + std::ptrdiff_t(count / 3);
    CHECK(of({middle, bytes.end()}, of({bytes.begin(), middle})) == by_bits(bytes));
  }
}

TEST_CASE("crc32c: every flipped bit and every burst is seen", "[tiers]") {
  std::vector<unsigned char> bytes = random_bytes(1, 600);
  const std::uint64_t right = of(bytes);
  for (std::size_t bit = 0; bit + 32 <= 8 * bytes.size(); ++bit) {
    const std::uint32_t burst = std::uint32_t(support::mixed({2, bit})) | 1;
    std::uint64_t word;
    std::memcpy(&word, &bytes[std::min(bit / 8, bytes.size() - 8)], 8);
    const std::uint64_t before = word, place = bit - 8 * std::min(bit / 8, bytes.size() - 8);
    word ^= std::uint64_t(bit % 2 ? 1 : burst) << place;
    std::memcpy(&bytes[std::min(bit / 8, bytes.size() - 8)], &word, 8);
    if (of(bytes) == right) FAIL("bit " << bit);
    std::memcpy(&bytes[std::min(bit / 8, bytes.size() - 8)], &before, 8);
  }
  CHECK(of(bytes) == right);
}
