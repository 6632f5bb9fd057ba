#include "support/catch.hpp"
#include "support/tensors.hpp"

#include <kvilt/attention/variant.hpp>

#include <set>
#include <tuple>

namespace {

using namespace kvilt;
using namespace support;

// Remembers what it was asked.
struct recorder {
  std::vector<where>* seen;
  bool keep(where w) const {
    seen->push_back(w);
    return w.k_position <= w.q_position;
  }
  float score(where w, float s) const {
    seen->push_back(w);
    return s;
  }
};

struct by_score {
  float score(where, float s) const { return s < 0 ? -std::numeric_limits<float>::infinity() : s; }
};
struct first_keys {
  idx count;
  position_range tiles(where) const { return {0, count}; }
  bool keep(where w) const { return w.k_position < count; }
};
struct nothing {};

static_assert(attention_variant<recorder> && attention_variant<by_score> && attention_variant<first_keys>);
static_assert(!attention_variant<nothing> && !attention_variant<int>);

constexpr where at(idx q, idx k) {
  return {0, 0, 0, 0, q, k};
}
static_assert(full().keep(at(0, 5)));
static_assert(causal().keep(at(5, 5)) && !causal().keep(at(5, 6)));
static_assert(causal_window{3}.keep(at(5, 3)) && !causal_window{3}.keep(at(5, 2)) && !causal_window{3}.keep(at(5, 6)));

}  // namespace

TEST_CASE("variant: where every kept key lies is what tiles says", "[attention]") {
  for (idx width = 1; width < 6; ++width)
    for (idx q = -3; q < 9; ++q) {
      const auto both = compose(causal_window{width}, first_keys{4});
      for (idx k = 0; k < 12; ++k) {
        const auto agrees = [&](const auto& variant) {
          const position_range r = variant.tiles(at(q, 0));
          return !variant.keep(at(q, k)) || (k >= r.first && k < r.last);
        };
        CHECK((agrees(causal{}) && agrees(causal_window{width}) && agrees(both)));
        CHECK(both.keep(at(q, k)) == (k <= q && k > q - width && k < 4));
      }
    }
}

TEST_CASE("variant: hooks are told who asks and about which key", "[attention]") {
  const text t(9, 2, 8, 8);
  const tensor<float> q = random_tensor(9, 4, 6, 8);
  std::vector<where> seen;
  const planned_step s(host(), {7}, {2}, {4}, 8, 8);
  t.attend(attention{recorder{&seen}}, s, q);
  std::set<std::tuple<int, int, idx>> pairs;
  for (const where& w : seen) {
    CHECK(w.sequence == 0);
    CHECK(w.kv_head == w.q_head / 3);
    CHECK(w.q_position == 5 + w.q_index);
    CHECK((w.k_position >= 0 && w.k_position < 9));
    pairs.insert({w.q_head, w.q_index, w.k_position});
  }
  CHECK(pairs.size() == std::size_t(6 * 4 * 9));
  // `keep` once for each pair, `score` once for each that is kept: 6, 7, 8 and 9 keys.
  CHECK(seen.size() == std::size_t(6 * (4 * 9 + 30)));
}

TEST_CASE("variant: a sequence is named by its number in the view's tables", "[attention]") {
  using kv = policy<contiguous, fp32<>>;
  cache<kv> owner({.layers = 1, .kv_heads = 1, .sequences = 3, .tokens = 30}, host_memory(), kv(8));
  std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 2));
  const int names[] = {2, 0}, none[] = {0, 0}, queries[] = {1, 2};
  const idx before[] = {3, 4};
  const int tokens[] = {3, 4};
  const idx empty[] = {0, 0};
  const tensor<float> rows = random_tensor(1, 7, 1, 8);
  append(host(), owner.view(0), plan(host(), {names, empty, tokens}, workspace), rows.rows(), rows.rows());
  std::vector<where> seen;
  answer<> a(3, 1, 8);
  attention{recorder{&seen}}(host(), owner.view(0), plan(host(), {names, before, none, queries}, workspace),
                             rows.rows(), a.out.rows());
  for (const where& w : seen) CHECK((w.sequence == 2 ? w.k_position < 3 : w.sequence == 0 && w.k_position < 4));
}

TEST_CASE("variant: a score of minus infinity hides the key", "[attention]") {
  struct positive : all_keys {
    double score(const oracle_key&, double s) const { return s < 0 ? minus_infinity : s; }
  };
  const text t(70, 1, 8, 8);
  const tensor<float> q = random_tensor(9, 6, 1, 8);
  const planned_step s(host(), {70}, {0}, {6}, 8, 8);
  CHECK(wrong_answers(t, s->items[0], q, t.attend(attention{by_score{}}, s, q), 1 / std::sqrt(8.0),
                      [](int, idx, int) { return positive{}; }) == "");
}

TEST_CASE("variant: what tiles leaves out is not asked about", "[attention]") {
  const text t(200, 1, 8, 8);
  const tensor<float> q = random_tensor(9, 1, 1, 8);
  std::vector<where> seen;
  t.attend(attention{compose(first_keys{3}, recorder{&seen})}, planned_step(host(), {200}, {0}, {1}, 8, 8), q);
  for (const where& w : seen) CHECK(w.k_position < 3);
}
