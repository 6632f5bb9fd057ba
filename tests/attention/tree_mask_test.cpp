#include "support/catch.hpp"
#include "support/tensors.hpp"

#include <kvilt/attention/tree_mask.hpp>

#include <set>

namespace {

using namespace kvilt;
using namespace support;

// A tree in which each token hangs below one of the tokens before it, or follows the text.
std::vector<int> random_parents(int tokens, std::uint64_t seed) {
  dice d(seed);
  std::vector<int> parents;
  for (int i = 0; i < tokens; ++i) parents.push_back(d.below(i + 1) - 1);
  return parents;
}

// A token's path from the text down to itself.
std::vector<int> path_to(int token, std::span<const int> parents) {
  std::vector<int> path;
  for (; token >= 0; token = parents[std::size_t(token)]) path.insert(path.begin(), token);
  return path;
}

struct on_path : all_keys {
  idx before;
  std::set<idx> path;
  on_path(idx n, const std::vector<int>& tokens) : before(n), path(tokens.begin(), tokens.end()) {}
  bool keep(const oracle_key& key) const { return key.position < before || path.count(key.position - before) == 1; }
};

}  // namespace

TEST_CASE("tree_mask: a query sees the text and its ancestors", "[attention]") {
  for (const int tokens : {1, 2, 7, 63, 64, 65, 130})
    for (const int before : {0, 3, 64, 77}) {
      const std::vector<int> parents = random_parents(tokens, std::uint64_t(tokens));
      const tree_table table(tokens, parents);
      const text t(before + tokens, 2, 16, 24);
      const tensor<float> q = random_tensor(9, tokens, 4, 16);
      const planned_step s(host(), {before}, {tokens}, {}, 16, 24);
      INFO(tokens << " tokens after " << before);
      CHECK(wrong_answers(t, s->items[0], q, t.attend(attention{tree_mask(table)}, s, q), 0.25,
                          [&](int i, idx, int) { return on_path(before, path_to(i, parents)); }) == "");
      for (int i = 0; i < tokens; ++i) CHECK(table.depths()[std::size_t(i)] == int(path_to(i, parents).size()) - 1);
    }
}

TEST_CASE("tree_mask: a chain is causal", "[attention]") {
  const std::vector<int> chain = {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8};
  const tree_table table(10, chain);
  const text t(75, 1, 16, 8);
  const tensor<float> q = random_tensor(9, 10, 2, 16);
  const planned_step s(host(), {65}, {10}, {}, 16, 8);
  const answer<> tree = t.attend(attention{tree_mask(table)}, s, q), line = t.attend(attention{causal{}}, s, q);
  CHECK((same_bits(tree.out.data, line.out.data) && same_bits(tree.lse, line.lse)));
}

TEST_CASE("tree_mask: every path gives what the path alone would give, turned by its depths", "[attention]") {
  constexpr int before = 21, tokens = 9, dim = 16;
  const std::vector<int> parents = {-1, -1, 0, 0, 1, 2, 2, 5, 4};
  const tree_table tree(tokens, parents);
  const rope_table table(dim, 100.0, rope_pairs::half_split);
  using kv = policy<paged<4>, fp32<>>;
  const tensor<float> k = random_tensor(1, before + tokens, 1, dim), v = random_tensor(2, before + tokens, 1, dim),
                      q = random_tensor(3, before + tokens, 2, dim);
  // Appends and attends to the text's rows and then `steps`, each of the rows that it names.
  const auto run = [&](const std::vector<std::vector<int>>& steps, auto variant, std::span<const idx> positions) {
    cache<kv> owner({.layers = 1, .kv_heads = 1, .tokens = 64, .max_step = 64}, host_memory(), kv(dim));
    const sequence seq[] = {owner.open()};
    owner.reserve(seq[0], before + tokens);
    std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
    std::vector<int> all(before);
    for (int i = 0; i < before; ++i) all[std::size_t(i)] = i;
    std::vector<std::vector<float>> outs;
    const auto take = [&](const std::vector<int>& named, auto mask, std::span<const idx> at) {
      const int count[] = {int(named.size())};
      tensor<float> sk(count[0], 1, dim), sv(count[0], 1, dim), sq(count[0], 2, dim);
      for (int i = 0; i < count[0]; ++i)
        for (int d = 0; d < 2 * dim; ++d) {
          const std::size_t to = std::size_t(i), from = std::size_t(named[to]), n = std::size_t(d);
          sq.data[to * 2 * dim + n] = q.data[from * 2 * dim + n];
          if (d >= dim) continue;
          sk.data[to * dim + n] = k.data[from * dim + n];
          sv.data[to * dim + n] = v.data[from * dim + n];
        }
      step st = owner.begin(host(), seq, count, workspace);
      if (!at.empty()) st.rope_positions = at.data();
      append(host(), owner.view(0), st, sq.rows(), sk.rows(), sv.rows(), table);
      answer<> a(count[0], 2, dim);
      attention{mask}(host(), owner.view(0), st, sq.rows(), a.out.rows(), a.lse_rows());
      owner.commit(st);
      for (int i = 0; i < count[0]; ++i) {
        std::vector<float> both(a.out.row(i, 0).begin(), a.out.row(i, 0).end());
        both.insert(both.end(), a.out.row(i, 1).begin(), a.out.row(i, 1).end());
        outs.push_back(both);
      }
    };
    take(all, causal{}, {});
    for (const std::vector<int>& named : steps) take(named, variant, positions);
    outs.erase(outs.begin(), outs.begin() + before);
    return outs;
  };
  std::vector<int> nodes;
  std::vector<idx> positions;
  for (int i = 0; i < tokens; ++i) {
    nodes.push_back(before + i);
    positions.push_back(before + tree.depths()[std::size_t(i)]);
  }
  const auto at_once = run({nodes}, tree_mask(tree), positions);
  for (int i = 0; i < tokens; ++i) {
    std::vector<std::vector<int>> one_by_one;
    for (const int node : path_to(i, parents)) one_by_one.push_back({before + node});
    const std::vector<float> alone = run(one_by_one, causal{}, {}).back();
    INFO("node " << i);
    CHECK(difference(at_once[std::size_t(i)], std::vector<double>(alone.begin(), alone.end())) == "");
  }
}

TEST_CASE("tree_mask: each sequence has its tree, or all share one", "[attention]") {
  using kv = policy<contiguous, fp32<>>;
  constexpr int dim = 8, tokens = 5, sequences = 3;
  cache<kv> owner({.layers = 1, .kv_heads = 1, .sequences = sequences, .tokens = 60}, host_memory(), kv(dim));
  const tensor<float> k = random_tensor(1, tokens, 1, dim), v = random_tensor(2, tokens, 1, dim),
                      q = random_tensor(3, 2 * tokens, 1, dim);
  std::vector<unsigned char> workspace(owner.workspace_bytes(host(), sequences));
  const int names[] = {2, 0}, counts[] = {tokens, tokens};
  const idx before[] = {0, 0};
  const step s = plan(host(), {names, before, counts}, workspace);
  tensor<float> kk(2 * tokens, 1, dim), vv(2 * tokens, 1, dim);
  for (std::size_t i = 0; i < kk.data.size(); ++i)
    kk.data[i] = k.data[i % k.data.size()], vv.data[i] = v.data[i % v.data.size()];
  append(host(), owner.view(0), s, kk.rows(), vv.rows());
  const auto is_right = [&](const tree_table& table, const std::vector<std::vector<int>>& parents) {
    answer<> a(2 * tokens, 1, dim);
    attention{tree_mask(table)}(host(), owner.view(0), s, q.rows(), a.out.rows(), a.lse_rows());
    std::string wrong;
    for (int row = 0; row < 2 * tokens; ++row) {
      const std::vector<int> path = path_to(row % tokens, parents[std::size_t(row / tokens)]);
      std::vector<oracle_key> keys;
      std::vector<std::vector<double>> held;
      for (int p = 0; p < tokens; ++p) held.push_back(widened(k.row(p, 0))), held.push_back(widened(v.row(p, 0)));
      for (int p = 0; p < tokens; ++p) keys.push_back({held[std::size_t(2 * p)], held[std::size_t(2 * p + 1)], p});
      wrong += difference(a.out.row(row, 0),
                          oracle(widened(q.row(row, 0)), keys, 1 / std::sqrt(8.0), dim, on_path(0, path)).out);
    }
    return wrong;
  };
  const std::vector<int> a = {-1, 0, 0, 1, 3}, b = {-1, -1, 1, 0, 2}, unused = {-1, 0, 1, 2, 3};
  std::vector<int> all = b;  // sequence 0, 1, 2
  all.insert(all.end(), unused.begin(), unused.end());
  all.insert(all.end(), a.begin(), a.end());
  CHECK(is_right(tree_table(tokens, all), {a, b}) == "");
  CHECK(is_right(tree_table(tokens, b), {b, b}) == "");
}

TEST_CASE("tree_mask: what is no tree is refused by name", "[attention]") {
  const std::vector<int> itself = {-1, 1}, far = {-2}, three = {-1, 0, 1};
  CHECK_THROWS_WITH(tree_table(2, itself), containing("token 1 of a tree has parent 1; an earlier token or -1"));
  CHECK_THROWS_WITH(tree_table(1, far), containing("token 0 of a tree has parent -2"));
  CHECK_THROWS_WITH(tree_table(2, three), containing("trees of 2 tokens have 3 parents"));
  CHECK_THROWS_WITH(tree_table(2, {}), containing("trees of 2 tokens have 0 parents"));
  CHECK_THROWS_WITH(tree_table(0, three), containing("a tree of 0 tokens"));
}
