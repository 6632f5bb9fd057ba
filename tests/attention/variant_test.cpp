#include "support/catch.hpp"
#include "support/hints.hpp"
#include "support/tensors.hpp"

#include <kvilt/attention/alibi.hpp>
#include <kvilt/attention/sink_logit.hpp>
#include <kvilt/attention/soft_cap.hpp>
#include <kvilt/attention/tree_mask.hpp>
#include <kvilt/attention/variant.hpp>

#include <algorithm>
#include <map>
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

// Every hook, counted; every key is kept, and `whole` says so where it is told to.
struct counts {
  int tiles = 0, whole = 0, sink = 0;
  std::map<std::tuple<int, int, idx>, int> keep, score;  // (query, head, key)
};
struct counting {
  counts* c;
  bool says_whole;

  bool keep(const where& w) const {
    ++c->keep[{w.q_index, w.q_head, w.k_position}];
    return true;
  }
  float score(const where& w, float s) const {
    ++c->score[{w.q_index, w.q_head, w.k_position}];
    return s;
  }
  position_range tiles(const where&) const {
    ++c->tiles;
    return {0, kvilt::detail::no_end};
  }
  bool whole(const where&, position_range) const {
    ++c->whole;
    return says_whole;
  }
  float sink(int) const {
    ++c->sink;
    return 1;
  }
};

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

TEST_CASE("variant: whole ranges are kept key by key, and what tiles leaves out is not", "[attention]") {
  const float logits[4] = {};
  alibi_table slopes(4);
  CHECK(whole_ranges(full{}) > 1000);
  CHECK(whole_ranges(causal{}) > 100);
  for (const idx width : {1, 5, 64}) {
    CHECK(whole_ranges(causal_window{width}) > 5);
    CHECK(whole_ranges(compose(causal{}, causal_window{width}, soft_cap{3})) > 5);
  }
  CHECK(whole_ranges(soft_cap{3}) > 1000);
  CHECK(whole_ranges(sink_logit{logits}) > 1000);
  CHECK(whole_ranges(alibi(slopes)) > 1000);
  slopes.truncate(0, 0.5);
  REQUIRE(slopes.widths()[0] < 10);
  CHECK(whole_ranges(alibi(slopes)) > 5);
  CHECK(whole_ranges(compose(causal{}, sink_logit{logits}, alibi(slopes))) > 5);
  std::vector<int> parents;
  for (int i = 0; i < 140; ++i) parents.push_back(i % 70 == 0 ? -1 : i % 70 / 2 - i % 3 / 2);
  const tree_table shared(70, std::span(parents).first(70)), two(70, parents);
  CHECK(whole_ranges(tree_mask(shared)) > 5);
  CHECK(whole_ranges(tree_mask(two)) > 5);
  CHECK(whole_ranges(compose(tree_mask(two), causal_window{60}), 9) > 5);
  // Who says nothing is asked about each key; who hides nothing need not say so.
  CHECK(whole_ranges(first_keys{50}) == 0);
  CHECK(whole_ranges(by_score{}) > 1000);
}

TEST_CASE("variant: every hook is called in decode, chunks and prefill, at any group size", "[attention]") {
  for (const int queries : {1, 5, 90})
    for (const int group : {1, 3, 8})
      for (const bool whole : {false, true}) {
        const int tokens = 150, kv_heads = 2, heads = kv_heads * group;
        const text t(tokens, kv_heads, 8, 8);
        const tensor<float> q = random_tensor(9, queries, heads, 8);
        counts c;
        const planned_step s(host(), {tokens}, {0}, {queries}, 8, 8);
        const answer<> got = t.attend(attention{counting{&c, whole}}, s, q);
        INFO(queries << " queries, group " << group << ", whole " << whole);
        const std::size_t pairs = std::size_t(tokens * queries * heads);
        CHECK(c.score.size() == pairs);
        CHECK(std::all_of(c.score.begin(), c.score.end(), [](const auto& pair) { return pair.second == 1; }));
        // Whole ranges are not asked about key by key.
        CHECK(c.keep.size() == (whole ? 0 : pairs));
        CHECK(std::all_of(c.keep.begin(), c.keep.end(), [](const auto& pair) { return pair.second == 1; }));
        CHECK(c.whole > 0);
        CHECK(c.tiles >= queries * heads);
        CHECK(c.sink == queries * heads);
        const answer<> plain = t.attend(attention{full{}}, s, q);
        for (std::size_t i = 0; i < plain.lse.size(); ++i)
          CHECK(got.lse[i] == Approx(std::log(std::exp(plain.lse[i]) + std::exp(1.0f))));
      }
}

TEST_CASE("variant: layers of one model each have their own over one cache", "[attention]") {
  using kv = policy<paged<8>, fp32<>>;
  constexpr int tokens = 60, dim = 16, heads = 4;
  cache<kv> owner({.layers = 4, .kv_heads = 2, .tokens = 64, .max_step = 64}, host_memory(), kv(dim));
  const sequence s[] = {owner.open()};
  owner.reserve(s[0], tokens);
  std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
  const int count[] = {tokens};
  const step st = owner.begin(host(), s, count, workspace);
  const alibi_table slopes(heads);
  const float logits[] = {0, 2, -1, 5};
  const auto is_right = [&](int layer, auto variant) {
    const text t(tokens, 2, dim, dim, std::uint64_t(10 * layer));  // the same rows in a cache of their own
    const tensor<float> q = random_tensor(std::uint64_t(10 * layer + 5), tokens, heads, dim);
    append(host(), owner.view(layer), st, t.k.rows(), t.v.rows());
    answer<> a(tokens, heads, dim);
    attention{variant}(host(), owner.view(layer), st, q.rows(), a.out.rows(), a.lse_rows());
    const answer<> alone = t.attend(attention{variant}, planned_step(host(), {tokens}, {0}, {tokens}, dim, dim), q);
    return same_bits(a.out.data, alone.out.data) && same_bits(a.lse, alone.lse);
  };
  CHECK(is_right(0, compose(causal_window{9}, sink_logit{logits})));
  CHECK(is_right(1, compose(causal{}, sink_logit{logits})));
  CHECK(is_right(2, compose(causal{}, soft_cap{2}, alibi(slopes))));
  CHECK(is_right(3, full{}));
  owner.commit(st);
}

TEST_CASE("variant: a composition has the sink of the one that has one", "[attention]") {
  const float logits[] = {3, 4};
  CHECK(compose(causal{}, sink_logit{logits}, soft_cap{1}).sink(1) == 4);
  CHECK(compose(sink_logit{logits}, causal{}).sink(0) == 3);
  CHECK(kvilt::detail::has_sink<decltype(compose(causal{}, soft_cap{1}, sink_logit{logits}))>);
  CHECK(!kvilt::detail::has_sink<decltype(compose(causal{}, soft_cap{1}))>);
}

namespace {

// One sequence grown in chunks over any policy, each chunk's queries under the variant, held against 32-bit rows in one
// piece under the same variant and `extra` (what the policy's retention hides).
template <class Policy, class Variant, class Extra>
std::string differs_over(const Policy& p, const Variant& variant, const Extra& extra, tolerance within) {
  constexpr int tokens = 100, dim = 16, heads = 4;
  const text t(tokens, 2, dim, dim);
  const tensor<float> q = random_tensor(5, tokens, heads, dim);
  const answer<> want =
      t.attend(attention{compose(variant, extra)}, planned_step(host(), {tokens}, {0}, {tokens}, dim, dim), q);
  cache<Policy> owner({.layers = 1, .kv_heads = 2, .tokens = 128, .max_step = 9}, host_memory(), p);
  const sequence s[] = {owner.open()};
  owner.reserve(s[0], tokens);
  std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
  answer<> got(tokens, heads, dim);
  for (int first = 0, n = 1; first < tokens; first += n, n = n % 9 + 1) {
    const int count[] = {std::min(n, tokens - first)};
    const step st = owner.begin(host(), s, count, workspace);
    const auto part = [&](auto all) { return decltype(all){all.at(first, 0), all.token_stride, dim, all.heads, dim}; };
    append(host(), owner.view(0), st, part(t.k.rows()), part(t.v.rows()));
    attention{variant}(host(), owner.view(0), st, part(q.rows()), part(got.out.rows()),
                       natural_lse{got.lse.data() + first * heads, heads});
    owner.commit(st);
  }
  return difference(got.out.data, std::vector<double>(want.out.data.begin(), want.out.data.end()), within) +
         difference(got.lse, std::vector<double>(want.lse.begin(), want.lse.end()), within);
}

template <class Variant>
void check_over_policies(const Variant& variant) {
  const tolerance exact, half{4e-3, 4e-3, 1e-4};
  CHECK(differs_over(policy<contiguous, fp32<>>(16), variant, full{}, exact) == "");
  CHECK(differs_over(policy<paged<4>, rotated<fp32<>>, fp32<>>(16), variant, full{}, exact) == "");
  CHECK(differs_over(ring<fp32<>, fp32<>>(16, window<>(21)), variant, causal_window{21}, exact) == "");
  CHECK(differs_over(policy<paged<4>, fp32<>, fp32<>, window<>>(16, window<>(21)), variant, causal_window{21}, exact) ==
        "");
  // Three segments, of which two are in 16 bit: the sink still counts once.
  CHECK(differs_over(policy<paged<4>, fp32<>, fp32<>, keep_all, 3, 7>(16), variant, full{}, half) == "");
}

}  // namespace

TEST_CASE("variant: every kind of cache gives a variant's answers, chunk by chunk", "[attention]") {
  const float logits[] = {0, 2, -1, 5};
  alibi_table slopes(4);
  slopes.truncate(0.5, 0.3);
  REQUIRE(slopes.widths()[0] < 30);
  check_over_policies(compose(causal{}, sink_logit{logits}));
  check_over_policies(compose(causal{}, soft_cap{1.5f}, alibi(slopes), sink_logit{logits}));
}
