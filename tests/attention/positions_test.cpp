#include "support/catch.hpp"
#include "support/tensors.hpp"

#include <kvilt/position/scaling.hpp>

namespace {

using namespace kvilt;
using namespace support;

constexpr int dim = 16, tokens = 90;

// One sequence grown by chunks of every length; `turned_at_append` or on read. Returns all outputs and log-sum-exps.
template <class Policy>
std::vector<float> run(const Policy& p, const rope& turn, bool turned_at_append) {
  cache<Policy> owner({.layers = 1, .kv_heads = 2, .tokens = 128, .max_step = 9}, host_memory(), p);
  const sequence s[] = {owner.open()};
  owner.reserve(s[0], tokens);
  std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
  const tensor<float> k = random_tensor(1, tokens, 2, dim), v = random_tensor(2, tokens, 2, dim),
                      q = random_tensor(3, tokens, 6, dim);
  std::vector<float> all;
  for (int first = 0, n = 1; first < tokens; first += n, n = n % 9 + 1) {
    const int count[] = {std::min(n, tokens - first)};
    const step st = owner.begin(host(), s, count, workspace);
    tensor<float> some(count[0], 6, dim);
    std::copy_n(q.data.begin() + first * 6 * dim, some.data.size(), some.data.begin());
    const rows<const float> kr = {k.rows().at(first, 0), 2 * dim, dim, 2, dim};
    const rows<const float> vr = {v.rows().at(first, 0), 2 * dim, dim, 2, dim};
    append(host(), owner.view(0), st, kr, vr, turned_at_append ? turn : rope{});
    rotate_queries(host(), st, some.rows(), dim, turn);
    answer<> a(count[0], 6, dim);
    if (turned_at_append)
      attention{causal{}}(host(), owner.view(0), st, some.rows(), a.out.rows(), a.lse_rows());
    else
      attention<causal, rope_on_read>({}, 0, {turn})(host(), owner.view(0), st, some.rows(), a.out.rows(),
                                                     a.lse_rows());
    owner.commit(st);
    all.insert(all.end(), a.out.data.begin(), a.out.data.end());
    all.insert(all.end(), a.lse.begin(), a.lse.end());
  }
  return all;
}

template <class Policy>
std::string on_read_differs(const Policy& p, const rope& turn, tolerance within = {}) {
  const std::vector<float> at_append = run(p, turn, true), on_read = run(p, turn, false);
  return difference(on_read, std::vector<double>(at_append.begin(), at_append.end()), within);
}

}  // namespace

TEST_CASE("positions: keys turned on read are those turned at append, bit for bit in 32 bit", "[attention]") {
  for (const rope_pairs pairs : {rope_pairs::half_split, rope_pairs::interleaved}) {
    const rope_table table(12, 100.0, pairs, yarn_scaling{4, 20});
    rope turn = table;
    turn.first = 3;
    CHECK(
        same_bits(run(policy<contiguous, fp32<>>(dim), turn, true), run(policy<contiguous, fp32<>>(dim), turn, false)));
    CHECK(same_bits(run(policy<paged<4>, fp32<>>(dim), turn, true), run(policy<paged<4>, fp32<>>(dim), turn, false)));
    using ringed = ring<fp32<>, fp32<>>;
    CHECK(same_bits(run(ringed(dim, window<>(11)), turn, true), run(ringed(dim, window<>(11)), turn, false)));
  }
}

TEST_CASE("positions: keys turned on read leave a rotation and codes before they turn", "[attention]") {
  const rope_table table(16, 100.0, rope_pairs::half_split);
  using rotated_kv = policy<paged<8>, rotated<fp32<>>, rotated<fp32<>>>;
  CHECK(on_read_differs(rotated_kv(dim), table) == "");
  // Codes are those of other numbers: as close as the format is.
  CHECK(on_read_differs(policy<paged<8>, q8<>>(dim), table, {0.05, 0.05, 1e-3}) == "");
  using tailed = policy<contiguous, rotated<q8<>>, q8<>, keep_all, 2, 7>;
  CHECK(on_read_differs(tailed(dim), table, {0.05, 0.05, 1e-3}) == "");
}

TEST_CASE("positions: with dynamic NTK every key turns by the frequencies of now", "[attention]") {
  using kv = policy<paged<4>, fp32<>>;
  constexpr double factor = 2, trained = 24, base = 100;
  cache<kv> owner({.layers = 1, .kv_heads = 1, .tokens = 128, .max_step = 9}, host_memory(), kv(dim));
  const sequence s[] = {owner.open()};
  owner.reserve(s[0], tokens);
  std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
  const tensor<float> k = random_tensor(1, tokens, 1, dim), v = random_tensor(2, tokens, 1, dim),
                      q = random_tensor(3, tokens, 2, dim);
  for (int first = 0, n = 1; first < tokens; first += n, n = n % 9 + 1) {
    const int count[] = {std::min(n, tokens - first)};
    const idx after = first + count[0];
    const rope_table table(dim, base, rope_pairs::half_split, dynamic_ntk_scaling{factor, trained, double(after)});
    const step st = owner.begin(host(), s, count, workspace);
    tensor<float> some(count[0], 2, dim);
    std::copy_n(q.data.begin() + first * 2 * dim, some.data.size(), some.data.begin());
    append(host(), owner.view(0), st, rows<const float>{k.rows().at(first, 0), dim, dim, 1, dim},
           rows<const float>{v.rows().at(first, 0), dim, dim, 1, dim});
    rotate_queries(host(), st, some.rows(), dim, table);
    answer<> a(count[0], 2, dim);
    attention<causal, rope_on_read>({}, 0, {table})(host(), owner.view(0), st, some.rows(), a.out.rows(), a.lse_rows());
    owner.commit(st);
    const double grown = double(after) <= trained
                             ? base
                             : base * std::pow(factor * double(after) / trained - (factor - 1), dim / (dim - 2.0));
    std::vector<std::vector<double>> turned, values;
    for (idx p = 0; p < after; ++p) {
      turned.push_back(widened(k.row(p, 0))), values.push_back(widened(v.row(p, 0)));
      support::turn(turned.back(), p, dim, grown, false);
    }
    for (int i = 0; i < count[0]; ++i)
      for (int head = 0; head < 2; ++head) {
        std::vector<oracle_key> keys;
        for (idx p = 0; p <= first + i; ++p) keys.push_back({turned[std::size_t(p)], values[std::size_t(p)], p});
        std::vector<double> query = widened(q.row(first + i, head));
        support::turn(query, first + i, dim, grown, false);
        INFO("query " << first + i << " of " << after);
        CHECK(difference(a.out.row(i, head), oracle(query, keys, 0.25, dim, all_keys{}).out) == "");
      }
  }
}

TEST_CASE("positions: keys turned on read have no positions but those in the text", "[attention]") {
  const text t(5, 1, 16, 8);
  const rope_table table(16, 100.0, rope_pairs::half_split), wide(18, 100.0, rope_pairs::half_split);
  const tensor<float> q = random_tensor(9, 2, 1, 16);
  const planned_step given(host(), {3}, {2}, {}, 16, 8, {7, 8}), s(host(), {3}, {2}, {}, 16, 8);
  using on_read = attention<causal, rope_on_read>;
  CHECK_THROWS_WITH(t.attend(on_read({}, 0, {table}), given, q), containing("the step has positions of its own"));
  CHECK_THROWS_WITH(t.attend(on_read({}, 0, {wide}), s, q), containing("RoPE over 18 numbers of rows of 16"));
}
