#include "../../examples/my_variant/my_variant.hpp"

#include "support/catch.hpp"
#include "support/hints.hpp"
#include "support/tensors.hpp"

namespace {

using namespace support;

constexpr int positions = 200;

// Documents of 1, 2, 3, ... tokens.
std::vector<idx> starts() {
  std::vector<idx> start;
  for (int length = 1; int(start.size()) < positions; ++length)
    start.insert(start.end(), std::size_t(length), idx(start.size()));
  return start;
}

// One of three blocks, and each block's own.
std::vector<unsigned char> some_blocks(int blocks) {
  std::vector<unsigned char> seen(std::size_t(blocks) * std::size_t(blocks));
  for (int i = 0; i < blocks; ++i)
    for (int j = 0; j < blocks; ++j) seen[std::size_t(i * blocks + j)] = i == j || (i * 7 + j) % 3 == 0;
  return seen;
}

struct same_document : band {
  idx start;
  same_document(idx query_position, idx first) : band(query_position, 1000), start(first) {}
  bool keep(const oracle_key& key) const { return band::keep(key) && key.position >= start; }
};
struct same_blocks : band {
  const std::vector<unsigned char>& seen;
  idx size, blocks;
  same_blocks(idx query_position, const std::vector<unsigned char>& s, idx n, idx all)
      : band(query_position, 1000), seen(s), size(n), blocks(all) {}
  bool keep(const oracle_key& key) const {
    return band::keep(key) && seen[std::size_t(query / size * blocks + key.position / size)] == 1;
  }
};

}  // namespace

TEST_CASE("my_variant: documents and blocks keep what they say", "[examples]") {
  const text t(positions, 2, 16, 24);
  const tensor<float> q = random_tensor(9, 120, 4, 16);
  const planned_step s(host(), {positions}, {0}, {120}, 16, 24);
  const std::vector<idx> start = starts();
  CHECK(wrong_answers(t, s->items[0], q, t.attend(kvilt::attention{mine::documents{start.data()}}, s, q), 0.25,
                      [&](int, idx position, int) { return same_document(position, start[std::size_t(position)]); }) ==
        "");
  for (const int size : {1, 7, 64, 100}) {
    const int blocks = (positions + size - 1) / size;
    const std::vector<unsigned char> seen = some_blocks(blocks);
    const auto variant = kvilt::compose(kvilt::causal{}, mine::block_sparse{seen.data(), blocks, size});
    CHECK(wrong_answers(t, s->items[0], q, t.attend(kvilt::attention{variant}, s, q), 0.25,
                        [&](int, idx position, int) { return same_blocks(position, seen, size, blocks); }) == "");
  }
}

TEST_CASE("my_variant: hints of documents and blocks hold", "[examples]") {
  const std::vector<idx> start = starts();
  CHECK(whole_ranges(mine::documents{start.data()}, 70, 0) > 0);
  for (const int size : {1, 7, 64, 100}) {
    const int blocks = (positions + size - 1) / size;
    const std::vector<unsigned char> seen = some_blocks(blocks);
    CHECK(whole_ranges(mine::block_sparse{seen.data(), blocks, size}, 70, 0) > 0);
  }
}
