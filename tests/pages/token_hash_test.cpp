#include "support/catch.hpp"

#include <kvilt/pages/token_hash.hpp>

#include <set>
#include <vector>

namespace {

using namespace kvilt;
using words = std::vector<std::uint64_t>;

// The formula of the header, with products by halves instead of 128 bits.
std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
  const std::uint64_t middle = (a0 * b0 >> 32) + (a0 * b1 & 0xffffffffu) + (a1 * b0 & 0xffffffffu);
  const std::uint64_t high = a1 * b1 + (a0 * b1 >> 32) + (a1 * b0 >> 32) + (middle >> 32);
  return a * b ^ high;
}
std::uint64_t constant(std::uint64_t key, int i) {
  std::uint64_t z = key + std::uint64_t(i + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
std::uint64_t of_words(std::uint64_t key, words w) {
  if (w.size() % 2) w.push_back(0);
  std::uint64_t h = constant(key, 0);
  for (std::size_t i = 0; i < w.size(); i += 2) h = fold(h ^ w[i], constant(key, 1) ^ w[i + 1]);
  return h;
}
std::uint64_t of_root(std::uint64_t key, const words& keys) {
  return fold(of_words(key, keys) ^ constant(key, 2), keys.size() ^ constant(key, 3));
}
std::uint64_t of_page(std::uint64_t key, std::uint64_t before, std::vector<token_id> t) {
  if (t.size() % 2) t.push_back(0);
  words w;
  for (std::size_t i = 0; i < t.size(); i += 2)
    w.push_back(std::uint64_t(std::uint32_t(t[i + 1])) << 32 | std::uint32_t(t[i]));
  return fold(of_words(key, w) ^ constant(key, 2), before ^ constant(key, 3));
}

}  // namespace

TEST_CASE("token_hash: names are those of the documented formula", "[pages]") {
  for (const std::uint64_t key : {std::uint64_t(0), std::uint64_t(1), std::uint64_t(0xfedcba9876543210u)}) {
    const token_hash hash(key);
    for (const words& keys : {words{}, words{0}, words{1, 2}, words{~std::uint64_t(0), 3, 4}})
      CHECK(hash.root(keys) == of_root(key, keys));
    for (const int count : {1, 2, 3, 4, 5, 7, 16, 19, 64, 256}) {
      std::vector<token_id> t(std::size_t(count) + 5, -1);  // what stands behind a page is not part of it
      for (int i = 0; i < count; ++i) t[std::size_t(i)] = i * 77777 - 3;
      CHECK(hash.page(key + 9, t.data(), count) == of_page(key, key + 9, {t.begin(), t.begin() + count}));
    }
  }
}

TEST_CASE("token_hash: names are the same in every process", "[pages]") {
  constexpr token_id tokens[3] = {1, 2, 3};
  constexpr token_hash hash;
  constexpr std::uint64_t root = hash.root({}), page = hash.page(root, tokens, 3);
  CHECK(root == 0xfdc226000335ee4fu);
  CHECK(page == 0x4c60f82d90d4e4edu);
}

TEST_CASE("token_hash: near prefixes have other names in both halves", "[pages]") {
  const token_hash hash(5);
  std::set<std::uint32_t> high, low;
  const auto enter = [&](std::uint64_t name) {
    high.insert(std::uint32_t(name >> 32)), low.insert(std::uint32_t(name));
  };
  std::vector<token_id> t(16, 0);
  enter(hash.page(0, t.data(), 16));
  for (std::size_t i = 0; i < 16; ++i)
    for (int bit = 0; bit < 32; ++bit) {
      t[i] = token_id(std::uint32_t(1) << bit);
      enter(hash.page(0, t.data(), 16));
      t[i] = 0;
    }
  for (int bit = 0; bit < 64; ++bit) enter(hash.page(std::uint64_t(1) << bit, t.data(), 16));
  for (std::uint64_t key = 0; key < 64; ++key) {
    enter(hash.root(words{key}));
    enter(hash.root(words{key, 0}));
  }
  const std::size_t all = 1 + 16 * 32 + 64 + 128;
  CHECK(high.size() == all);
  CHECK(low.size() == all);
}
