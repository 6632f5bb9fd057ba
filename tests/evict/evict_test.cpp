#include "support/catch.hpp"
#include "support/memory.hpp"
#include "support/tensors.hpp"

#include <kvilt/kvilt.hpp>

#include <algorithm>

namespace {

using namespace kvilt;
using namespace support;

constexpr int layers = 2, heads = 2, group = 2, dim = 32;
constexpr cache_shape shape{.layers = layers, .kv_heads = heads, .sequences = 3, .tokens = 600, .max_step = 16};

// Runs a text through a cache, whose tokens depend on a seed and their position, and adds up what a score asks for.
template <class Policy, class Score>
struct engine {
  cache<Policy> owner{shape, host_memory()};
  column_sums sums{layers, heads, shape.sequences, 600};
  Score score;

  explicit engine(const Score& s) : score(s) {}

  std::vector<float> step(sequence s, int tokens) {
    owner.reserve(s, tokens);
    std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
    const kvilt::step now = owner.begin(host(), {&s, 1}, {&tokens, 1}, workspace);
    std::vector<float> all;
    for (int layer = 0; layer < layers; ++layer) {
      const std::uint64_t seed = mixed({std::uint64_t(owner.length(s)), std::uint64_t(layer)});
      const tensor<float> k = random_tensor(seed, tokens, heads, dim), v = random_tensor(seed + 1, tokens, heads, dim),
                          q = random_tensor(seed + 2, tokens, heads * group, dim);
      const auto view = owner.view(layer);
      const attention a{causal{}};
      answer<> got(tokens, q.heads, dim);
      append(host(), view, now, k.rows(), v.rows());
      a(host(), view, now, q.rows(), got.out.rows(), got.lse_rows());
      if (score.queries() != 0)
        sums.add(host(), a, layer, view, now, q.rows(), got.lse_rows(), score.queries(), !Score::running);
      all.insert(all.end(), got.out.data.begin(), got.out.data.end());
    }
    owner.commit(now);
    return all;
  }
  bool keep(sequence s, idx count, protected_rows ends = {}) {
    return evict(host(), owner, s, score, sums, group, count, ends);
  }
  // By head, `counts[layer]` of each on average.
  bool keep_by_head(sequence s, const std::vector<idx>& counts, ada_kv share, protected_rows ends = {}) {
    return evict(host(), owner, s, score, sums, group, counts, share, ends);
  }
  std::vector<idx> positions(sequence s, int layer, int head) {
    std::vector<idx> all;
    each_row(owner.view(layer), owner.holds(s), owner.row(s), head, [&](const auto&, place, idx position, idx i) {
      CHECK(i == idx(all.size()));
      all.push_back(position);
    });
    return all;
  }
};

using plain = policy<paged<8>, fp16<dim>, q8<dim>, listed>;
using with_ends = policy<paged<8>, q4<dim>, q4<dim>, listed, 4, 16>;
using apart = policy<paged_by_head<8>, fp16<dim>, q8<dim>, listed>;
using apart_with_ends = policy<paged_by_head<4>, q4<dim>, q4<dim>, listed, 4, 16>;

}  // namespace

TEST_CASE("evict: a budget is held over any number of steps, and pages with it", "[evict]") {
  const auto run = [](auto&& e) {
    const sequence s = e.owner.open();
    for (int i = 0; i < 150; ++i) {
      e.step(s, 1 + i % 4);
      const idx before = e.owner.kept(s);
      CHECK(e.keep(s, 40, {4, 20}) == (before > 40));
      CHECK(e.owner.kept(s) == std::min<idx>(before, 40));
      if (before > 40) CHECK(e.owner.bytes().body_pages - e.owner.free_pages() <= 5);
    }
    for (int layer = 0; layer < layers; ++layer)
      for (int head = 0; head < heads; ++head) {
        const std::vector<idx> left = e.positions(s, layer, head);
        for (idx i = 0; i < 4; ++i) CHECK(left[std::size_t(i)] == i);
        for (idx i = 1; i <= 20; ++i) CHECK(left[left.size() - std::size_t(i)] == e.owner.length(s) - i);
      }
  };
  run(engine<plain, h2o>(h2o{}));
  run(engine<plain, h2o>(h2o{.mean = true}));
  run(engine<plain, tova>(tova{}));
  run(engine<plain, key_norm>(key_norm{}));
  run(engine<with_ends, h2o>(h2o{}));
}

TEST_CASE("evict: a budget of each layer is held by head over any number of steps, and pages with it", "[evict]") {
  const auto run = [](auto&& e) {
    const sequence s = e.owner.open();
    const std::vector<idx> counts = {50, 30};
    const idx page = std::remove_cvref_t<decltype(e.owner)>::policy_type::layout_type::min_run;
    bool uneven = false;
    for (int i = 0; i < 150; ++i) {
      e.step(s, 1 + i % 4);
      std::vector<idx> before(layers, 0), after(layers, 0);
      const auto count = [&](std::vector<idx>& of) {
        for (int list = 0; list < layers * heads; ++list)
          of[std::size_t(list / heads)] += e.owner.kept(s, list / heads, list % heads);
      };
      count(before);
      CHECK(e.keep_by_head(s, counts, {0.5}, {4, 10}) == (before[0] > 100 || before[1] > 60));
      count(after);
      for (std::size_t layer = 0; layer < layers; ++layer)
        CHECK(after[layer] == std::min<idx>(before[layer], heads * counts[layer]));
      if (before[0] > 100)
        CHECK(e.owner.bytes().body_pages - e.owner.free_pages() <= (100 + 60) / page + layers * heads);
      for (int list = 0; list < layers * heads; ++list) {
        const idx kept = e.owner.kept(s, list / heads, list % heads);
        if (before[std::size_t(list / heads)] > heads * counts[std::size_t(list / heads)])
          CHECK(kept >= counts[std::size_t(list / heads)] / 2);
        uneven = uneven || kept != e.owner.kept(s, list / heads, 0);
      }
    }
    CHECK(uneven);
    for (int layer = 0; layer < layers; ++layer)
      for (int head = 0; head < heads; ++head) {
        const std::vector<idx> left = e.positions(s, layer, head);
        for (idx i = 0; i < 4; ++i) CHECK(left[std::size_t(i)] == i);
        for (idx i = 1; i <= 10; ++i) CHECK(left[left.size() - std::size_t(i)] == e.owner.length(s) - i);
      }
  };
  run(engine<apart, h2o>(h2o{}));
  run(engine<apart, h2o>(h2o{.mean = true}));
  run(engine<apart, key_norm>(key_norm{}));
  run(engine<apart_with_ends, h2o>(h2o{}));
}

TEST_CASE("evict: each head keeps the best of its share, and its column sums with them", "[evict]") {
  engine<apart, h2o> e(h2o{});
  const sequence s = e.owner.open();
  for (int i = 0; i < 5; ++i) e.step(s, 12);
  REQUIRE(e.keep_by_head(s, {30, 40}, {0.25}, {2, 5}));
  e.step(s, 9);
  const column_sums before = e.sums;
  const int row = e.owner.row(s);
  std::vector<std::vector<float>> scores;
  for (int list = 0; list < layers * heads; ++list) {
    const float* const mass = before.of(list / heads, row).at(0, list % heads);
    scores.emplace_back(mass, mass + e.owner.kept(s, list / heads, list % heads));
  }
  const protected_rows ends{2, 5};
  const rows_by_head stay = places_to_keep(e.owner, s, e.score, e.sums, group, std::vector<idx>{20, 25}, {0.25}, ends);
  REQUIRE(e.keep_by_head(s, {20, 25}, {0.25}, ends));
  auto next = stay.places.begin();
  for (int layer = 0; layer < layers; ++layer) {
    const std::vector<std::span<const float>> of(scores.begin() + layer * heads, scores.begin() + (layer + 1) * heads);
    const std::vector<idx> counts = ada_counts(of, ends, layer == 0 ? 20 : 25, {0.25});
    for (int head = 0; head < heads; ++head) {
      std::vector<int> places(static_cast<std::size_t>(counts[std::size_t(head)]));
      best_places(of[std::size_t(head)], ends, places);
      CHECK(stay.sizes[std::size_t(layer * heads + head)] == int(places.size()));
      CHECK(e.owner.kept(s, layer, head) == idx(places.size()));
      CHECK(std::equal(places.begin(), places.end(), next));
      next += std::ptrdiff_t(places.size());
      for (std::size_t i = 0; i < 600; ++i) {
        const float now = e.sums.of(layer, row).at(0, head)[i];
        CHECK(now == (i < places.size() ? of[std::size_t(head)][std::size_t(places[i])] : 0));
      }
    }
  }
  CHECK(next == stay.places.end());
  // Cut, sums are those of the rows that each head has left.
  e.owner.truncate(s, 40);
  std::vector<idx> left;
  for (int list = 0; list < layers * heads; ++list) left.push_back(e.owner.kept(s, list / heads, list % heads));
  e.sums.truncate(row, left);
  for (int list = 0; list < layers * heads; ++list)
    for (idx i = 0; i < 600; ++i)
      CHECK((e.sums.of(list / heads, row).at(0, list % heads)[i] > 0) == (i < left[std::size_t(list)]));
  e.step(s, 3);
}

TEST_CASE("evict: budgets by head that cannot be meant are refused by name", "[evict]") {
  engine<apart, h2o> e(h2o{});
  const sequence s = e.owner.open();
  e.step(s, 12);
  CHECK_THROWS_WITH(e.keep_by_head(s, {8}, {}), containing("is to keep rows in 1 layers; the cache has 2"));
  CHECK_THROWS_WITH(e.keep_by_head(s, {8, -1}, {}, {0, 0}), containing("heads keep -1 rows"));
  CHECK_THROWS_WITH(e.keep_by_head(s, {8, 7}, {}, {4, 4}), containing("keeps 7 rows on average; 8 of its 12"));
  CHECK(e.owner.kept(s) == 12);
  CHECK_FALSE(e.keep_by_head(s, {12, 12}, {}));
  column_sums sums(2, 1, 2, 5);
  CHECK_THROWS_WITH(sums.keep(1, std::vector<int>{0, 1, 2}, std::vector<int>{1, 1}), containing("keeps 2 rows in all"));
  CHECK_THROWS_WITH(sums.truncate(1, std::vector<idx>{1}), containing("is cut in 1 heads; there are 2 layers of 1"));
  CHECK_THROWS_WITH(sums.truncate(1, std::vector<idx>{1, -1}), containing("is cut to -1 rows"));
}

TEST_CASE("evict: without a preference it is sinks and a window", "[evict]") {
  const std::vector<float> none(std::size_t(layers * heads * 100), 0.25f);
  engine<plain, given_scores> e(given_scores{packed_rows<const float>(none.data(), heads, 100)});
  const sequence s = e.owner.open();
  for (int i = 0; i < 10; ++i) e.step(s, 10);
  REQUIRE(e.keep(s, 16, {3, 0}));
  CHECK(e.positions(s, 1, 1) == std::vector<idx>{0, 1, 2, 87, 88, 89, 90, 91, 92, 93, 94, 95, 96, 97, 98, 99});
}

TEST_CASE("evict: SnapKV keeps its window and what that looks at", "[evict]") {
  engine<plain, snap_kv> e(snap_kv{8, 3});
  const sequence s = e.owner.open();
  e.step(s, 16), e.step(s, 16), e.step(s, 16);
  REQUIRE(e.keep(s, 20, {0, 0}));
  for (int layer = 0; layer < layers; ++layer)
    for (int head = 0; head < heads; ++head) {
      const std::vector<idx> left = e.positions(s, layer, head);
      REQUIRE(left.size() == 20);
      for (idx i = 1; i <= 8; ++i) CHECK(left[20 - std::size_t(i)] == 48 - i);
    }
}

TEST_CASE("evict: rows in 16 bit need no word to be protected", "[evict]") {
  engine<with_ends, key_norm> e(key_norm{});
  const sequence s = e.owner.open();
  for (int i = 0; i < 6; ++i) e.step(s, 10);
  const position_range may_go = e.owner.evictable(s);
  REQUIRE(e.keep(s, 30, {0, 0}));
  const std::vector<idx> left = e.positions(s, 0, 1);
  for (idx i = 0; i < 4; ++i) CHECK(left[std::size_t(i)] == i);
  for (idx i = 1; i <= 60 - may_go.last; ++i) CHECK(left[30 - std::size_t(i)] == 60 - i);
  CHECK_THROWS_WITH(e.keep(s, 10, {0, 0}), containing("10 of 30 rows are to stay; of these 4 at the beginning and"));
}

TEST_CASE("evict: a fork goes on with its parent's sums", "[evict]") {
  engine<plain, h2o> e(h2o{});
  const sequence s = e.owner.open();
  for (int i = 0; i < 4; ++i) e.step(s, 12);
  REQUIRE(e.keep(s, 30, {4, 8}));
  const sequence child = e.owner.fork(host(), s);
  e.sums.copy(e.owner.row(s), e.owner.row(child));
  for (int i = 0; i < 3; ++i) CHECK(same_bits(e.step(s, 5), e.step(child, 5)));
  const auto places = [&](sequence of) {
    return places_to_keep(e.owner, of, e.score, e.sums, group, 33, protected_rows{2, 8});
  };
  CHECK(places(s) == places(child));
  REQUIRE(e.keep(s, 33, {2, 8}));
  CHECK(e.owner.kept(child) == 45);
  e.sums.clear(e.owner.row(child));
  CHECK(e.sums.queries(1, e.owner.row(child)) == 0);
  CHECK(e.sums.queries(1, e.owner.row(s)) == 63);
}

TEST_CASE("evict: column sums move with their rows", "[evict]") {
  engine<plain, h2o> e(h2o{});
  const sequence s = e.owner.open();
  for (int i = 0; i < 4; ++i) e.step(s, 12);
  const column_sums before = e.sums;
  const int row = e.owner.row(s);
  const std::vector<int> places = places_to_keep(e.owner, s, e.score, e.sums, group, 30, protected_rows{2, 8});
  REQUIRE(e.keep(s, 30, {2, 8}));
  for (int list = 0; list < layers * heads; ++list)
    for (int i = 0; i < 48; ++i) {
      const float now = e.sums.of(list / heads, row).at(0, list % heads)[i];
      const int place = i < 30 ? places[std::size_t(30 * list + i)] : -1;
      CHECK(now == (place < 0 ? 0 : before.of(list / heads, row).at(0, list % heads)[place]));
    }
}

TEST_CASE("evict: sums of a sequence that is cut are those of what is left", "[evict]") {
  engine<plain, h2o> e(h2o{});
  const sequence s = e.owner.open();
  e.step(s, 16);
  e.sums.truncate(e.owner.row(s), 11);
  for (int head = 0; head < heads; ++head)
    for (int i = 0; i < 600; ++i) CHECK((e.sums.of(1, e.owner.row(s)).at(0, head)[i] > 0) == (i < 11));
}

TEST_CASE("evict: layers of a set keep different numbers of rows", "[evict]") {
  using set = cache_set<plain, with_ends>;
  test_memory heap;
  const set_shape of{.sequences = 2, .tokens = 300, .max_length = 150, .max_step = 16};
  set owner(of, memory<memory_space::host>::from(heap), layer_group<plain>{{0}, heads},
            layer_group<with_ends>{{1}, heads});
  std::size_t asked = 0;
  for (const auto& block : heap.blocks()) asked += block.second;
  CHECK(owner.bytes().bytes() == idx(asked));
  CHECK(owner.bytes().list_bytes() == 2 * 2 * 8);
  const sequence s = owner.open();
  const auto grow = [&] {
    const int tokens = 12;
    owner.reserve(s, tokens);
    std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
    const set::step_type now = owner.begin(host(), {&s, 1}, {&tokens, 1}, workspace);
    const tensor<float> k = random_tensor(1, tokens, heads, dim);
    for (int layer = 0; layer < 2; ++layer)
      owner.visit(layer, now, [&](const auto& view, const step& part, const head_range&) {
        append(host(), view, part, k.rows(), k.rows());
      });
    owner.commit(now);
  };
  for (int i = 0; i < 5; ++i) grow();
  const column_sums none(1, heads, 2, 150);
  const std::vector<idx> counts = pyramid_counts(2, 40, 60, 28, 4);
  CHECK(counts == std::vector<idx>{49, 31});
  owner.keep<0>(host(), s, places_to_keep(owner.group<0>(), s, key_norm(), none, 1, counts[0], {0, 8}));
  owner.keep<1>(host(), s, places_to_keep(owner.group<1>(), s, key_norm(), none, 1, counts[1], {0, 8}));
  CHECK(owner.group<0>().kept(s) == 49);
  CHECK(owner.group<1>().kept(s) == 31);
  CHECK(owner.length(s) == 60);
  for (int i = 0; i < 3; ++i) grow();
  CHECK(owner.group<1>().kept(s) == 67);
  CHECK_THROWS_WITH(owner.keep<1>(host(), s, std::vector<int>(3)), containing("group 1: sequence"));
  owner.truncate(s, 70);
  CHECK(owner.group<0>().kept(s) == 59);
}

TEST_CASE("evict: what cannot be meant is refused by name", "[evict]") {
  engine<plain, h2o> e(h2o{});
  const sequence s = e.owner.open();
  e.step(s, 12);
  const column_sums others(layers, heads + 1, 3, 600);
  CHECK_THROWS_WITH(places_to_keep(e.owner, s, h2o{}, others, group, 10), containing("column sums of 2 of 3"));
  const column_sums more(layers + 1, heads, 3, 600), few(layers, heads, 3, 11);
  CHECK_THROWS_WITH(places_to_keep(e.owner, s, h2o{}, more, group, 10), containing("column sums of 3 of 2"));
  CHECK_THROWS_WITH(places_to_keep(e.owner, s, h2o{}, few, group, 10),
                    containing("12 tokens is asked for by column sums of 3 rows of 11"));
  CHECK_THROWS_WITH(places_to_keep(e.owner, s, h2o{}, e.sums, group, 13), containing("12 rows and is to keep 13"));
  CHECK_THROWS_WITH(places_to_keep(e.owner, s, h2o{}, e.sums, 0, 10), containing("a group of 0"));
  CHECK_THROWS_AS((column_sums(0, 1, 1, 8)), invalid_argument);

  column_sums sums(2, 1, 2, 5);
  for (int i = 0; i < 5; ++i) sums.of(0).at(1, 0)[i] = sums.of(1).at(1, 0)[i] = float(1 + i);
  const auto refuses = [&](std::vector<int> places, int of, const std::string& text) {
    CHECK_THROWS_WITH(sums.keep(of, places), containing(text));
    for (int layer = 0; layer < 2; ++layer)
      for (int i = 0; i < 5; ++i) CHECK(sums.of(layer, 1).at(0, 0)[i] == float(1 + i));
  };
  refuses({0, 1, 2}, 1, "keeps 3 rows in 2 layers of 1 KV heads");
  refuses({0, 4, 0, 5}, 1, "keeps row 5 after 0; rows going up to less than 5");
  refuses({0, 4, 3, 3}, 1, "keeps row 3 after 3");
  refuses({0, 4, -1, 3}, 1, "keeps row -1 after -1");
  refuses({0, 4, 1, 3}, 2, "sequence 2; there are column sums of 2");
  CHECK_THROWS_WITH(sums.copy(1, 2), containing("sequence 2"));
  CHECK_THROWS_WITH(sums.truncate(-1, 2), containing("sequence -1"));
  CHECK_THROWS_WITH(sums.truncate(1, -1), containing("is cut to -1 rows"));
  sums.keep(1, std::vector<int>{0, 4, 1, 3});
  CHECK(std::vector<float>(sums.of(0, 1).at(0, 0), sums.of(0, 1).at(0, 0) + 3) == std::vector<float>{1, 5, 0});
  CHECK(std::vector<float>(sums.of(1, 1).at(0, 0), sums.of(1, 1).at(0, 0) + 3) == std::vector<float>{2, 4, 0});
  CHECK(e.owner.kept(s) == 12);
}
