#include "../../examples/my_variant/my_variant.hpp"
#include "support/attend_gpu.cuh"

#include <kvilt/attention/alibi.hpp>
#include <kvilt/attention/sink_logit.hpp>
#include <kvilt/attention/soft_cap.hpp>
#include <kvilt/attention/tree_mask.hpp>

// Variants, all over caches of one policy.

namespace {

using namespace kvilt;
using support::block_of, support::tried;

using kv = policy<paged<16>, bf16<64>>;
constexpr int most_heads = 12 * 64;

template <class Variant>
void check_variant(int number, const tried<Variant>& t) {
  support::check_attention<float, float>(number, kv(), t);
}

bool is_causal(const where& w) {
  return w.k_position <= w.q_position;
}

// Logits of -2 to 4, one of each query head.
std::vector<float> some_logits() {
  std::vector<float> logits;
  for (int head = 0; head < most_heads; ++head) logits.push_back(float(head % 7) - 2);
  return logits;
}

// A tree of 33 tokens, more than one to each.
std::vector<int> some_parents() {
  std::vector<int> parents = {-1, 0, 0, 1, -1, 4, 2, 6, 6};
  while (parents.size() < 33) parents.push_back(int(parents.size()) / 2 - (parents.size() % 3 == 0));
  return parents;
}
bool is_ancestor(const std::vector<int>& parents, int token, idx other) {
  while (token > other) token = parents[std::size_t(token)];
  return token == other;
}

}  // namespace

TEST_CASE("attend: full attention on the device", "[attention][gpu]") {
  support::require_gpu();
  for (const int number : {0, 5}) check_variant(number, tried<full>{{}, support::meaning()});
}

TEST_CASE("attend: a causal window on the device", "[attention][gpu]") {
  support::require_gpu();
  for (const idx width : {1, 17, 60}) {
    tried<causal_window> t{{width}};
    t.means.keep = [width](const where& w) { return is_causal(w) && w.q_position - w.k_position < width; };
    check_variant(int(width), t);
  }
}

TEST_CASE("attend: ALiBi on the device", "[attention][gpu]") {
  support::require_gpu();
  const alibi_table table(most_heads);
  const std::vector<float> slopes(table.slopes().begin(), table.slopes().end());
  std::vector<idx> widths;
  for (int head = 0; head < most_heads; ++head) widths.push_back(1 + head % 40);
  for (const bool truncated : {false, true}) {
    const alibi sloped{slopes.data(), truncated ? widths.data() : nullptr};
    auto both = compose(causal{}, sloped);
    tried<decltype(both)> t{both};
    t.arrays = {block_of(slopes), block_of(widths)};
    t.means.keep = [&](const where& w) {
      return is_causal(w) && (!truncated || w.q_position - w.k_position < widths[std::size_t(w.q_head)]);
    };
    t.means.score = [&](const where& w, double s) {
      return s - double(slopes[std::size_t(w.q_head)]) * double(w.q_position - w.k_position);
    };
    check_variant(2 + truncated, t);
  }
}

TEST_CASE("attend: capped scores on the device", "[attention][gpu]") {
  support::require_gpu();
  auto both = compose(causal{}, soft_cap{1.5f});
  tried<decltype(both)> t{both};
  t.means.score = [](const where&, double s) { return 1.5 * std::tanh(s / 1.5); };
  check_variant(3, t);
}

TEST_CASE("attend: a sink's logit on the device", "[attention][gpu]") {
  support::require_gpu();
  const std::vector<float> logits = some_logits();
  auto both = compose(causal{}, sink_logit{logits.data()});
  tried<decltype(both)> t{both};
  t.arrays = {block_of(logits)};
  t.means.sink = [&](int head) { return double(logits[std::size_t(head)]); };
  for (const int number : {1, 4}) check_variant(number, t);
}

TEST_CASE("attend: trees of speculated tokens on the device", "[attention][gpu]") {
  support::require_gpu();
  const std::vector<int> parents = some_parents();
  const tree_table table(int(parents.size()), parents);
  const tree_mask tree = table;
  tried<tree_mask> t{tree};
  t.arrays = {block_of(table.ancestors())};
  t.own_queries = true;
  t.means.keep = [&](const where& w) {
    const idx token = w.k_position - (w.q_position - w.q_index);
    return token < 0 || (token <= w.q_index && is_ancestor(parents, w.q_index, token));
  };
  for (const int number : {0, 1, 4}) check_variant(number, t);
}

TEST_CASE("attend: composed variants on the device", "[attention][gpu]") {
  support::require_gpu();
  const std::vector<float> logits = some_logits();
  auto all = compose(causal_window{40}, soft_cap{3}, sink_logit{logits.data()});
  tried<decltype(all)> t{all};
  t.arrays = {block_of(logits)};
  t.means.keep = [](const where& w) { return is_causal(w) && w.q_position - w.k_position < 40; };
  t.means.score = [](const where&, double s) { return 3 * std::tanh(s / 3); };
  t.means.sink = [&](int head) { return double(logits[std::size_t(head)]); };
  check_variant(6, t);
}

TEST_CASE("attend: the user's masks on the device", "[attention][gpu]") {
  support::require_gpu();
  constexpr int positions = 1200, size = 24, blocks = positions / size;
  std::vector<idx> start;
  for (int length = 1; int(start.size()) < positions; ++length)
    start.insert(start.end(), std::size_t(length), idx(start.size()));
  tried<mine::documents> packed{{start.data()}};
  packed.arrays = {block_of(start)};
  packed.own_queries = true;
  packed.means.keep = [&](const where& w) {
    return is_causal(w) && start[std::size_t(w.k_position)] == start[std::size_t(w.q_position)];
  };
  check_variant(7, packed);

  std::vector<unsigned char> seen(std::size_t(blocks * blocks));
  for (int i = 0; i < blocks * blocks; ++i) seen[std::size_t(i)] = i / blocks == i % blocks || i % 3 == 0;
  auto both = compose(causal{}, mine::block_sparse{seen.data(), blocks, size});
  tried<decltype(both)> sparse{both};
  sparse.arrays = {block_of(seen)};
  sparse.own_queries = true;
  sparse.means.keep = [&](const where& w) {
    return is_causal(w) && seen[std::size_t(w.q_position / size * blocks + w.k_position / size)] != 0;
  };
  check_variant(8, sparse);
}

TEST_CASE("attend: variants whose hooks have nothing to go by are refused on the device", "[attention][gpu]") {
  support::require_gpu();
  using text_type = support::filled_cache<kv>;
  const support::attend_shape shape{"refused", 2, 4, {{30, 1}}};
  const text_type text(kv(), shape);
  const support::trial<float, float, text_type, causal_window> one(text, text_type::kept(kv()), shape, {{5}});
  const auto attend = [&](auto variant) {
    attention{variant}(gpu(), one.view(), one.step(), one.q().read(), one.out().rows());
  };
  CHECK_THROWS_WITH(attend(compose(causal{}, soft_cap{-1})), support::containing("scores are capped at -1"));
  CHECK_THROWS_WITH(attend(causal_window{0}), support::containing("a window of 0 tokens"));
  CHECK_THROWS_WITH(attend(tree_mask{}), support::containing("the list of a tree's ancestors is null"));
  CHECK_THROWS_WITH(attend(compose(causal{}, sink_logit{})), support::containing("the sink's logits is null"));
  CHECK_THROWS_WITH(attend(compose(causal{}, alibi{})), support::containing("ALiBi's slopes is null"));
}
