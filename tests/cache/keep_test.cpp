#include "support/catch.hpp"
#include "support/evicted_cache.hpp"

#include <tuple>

namespace {

using namespace kvilt;
using namespace support;

template <class Layout, template <int> class K, template <int> class V = K, int Sinks = 0, int Tail = 0>
using kept_policy = policy<Layout, K<32>, V<16>, listed, Sinks, Tail>;
template <int D>
using int8_rotated = rotated<q8<D>>;
template <int D>
using int4 = q4<D>;
template <int D>
using fp8 = e4m3<D>;
template <int D>
using half = fp16<D>;
template <int D>
using full_width = fp32<D>;

using policies =
    std::tuple<kept_policy<contiguous, full_width>, kept_policy<paged<4>, full_width>, kept_policy<paged<16>, half>,
               kept_policy<contiguous, half, int8_rotated>, kept_policy<paged<3>, int8_rotated>,
               kept_policy<paged<8>, int4>, kept_policy<contiguous, int4, fp8>, kept_policy<paged<2>, fp8, int4>,
               kept_policy<paged<4>, int4, int4, 3, 9>, kept_policy<contiguous, int8_rotated, half, 2>,
               kept_policy<paged<8>, half, int4, 0, 7>, kept_policy<paged_by_head<4>, full_width>,
               kept_policy<paged_by_head<8>, half, int4>, kept_policy<paged_by_head<1>, int8_rotated>,
               kept_policy<paged_by_head<3>, fp8, int4, 3, 9>, kept_policy<paged_by_head<16>, int4, half, 2>,
               kept_policy<paged_by_head<8>, int4, int8_rotated, 0, 7>>;

using plain = kept_policy<paged<4>, full_width>;

// Any operation in any order on one cache and on its model.
template <class Policy>
class random_walk {
 public:
  explicit random_walk(std::uint64_t seed) : cache_(Policy(), seed), dice_(seed) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      const int kind = dice_.below(12), tag = any();
      INFO("operation " << i << " of kind " << kind);
      if (tag < 0 || (kind == 0 && cache_.tags().size() < 4))
        cache_.open(next_++);
      else if (kind < 7)
        step(tag);
      else if (kind < 9)
        cache_.keep_random(tag, dice_);
      else if (kind == 9)
        cache_.truncate(tag, std::max<idx>(0, cache_.length(tag) - dice_.below(dice_.below(4) ? 6 : 60)));
      else if (kind == 10)
        fork_or_reorder(tag);
      else if (dice_.below(3) == 0)
        cache_.close(tag);
      cache_.check();
    }
    for (const int tag : cache_.tags()) cache_.close(tag);
    CHECK(cache_.owner().free_pages() == cache_.owner().bytes().body_pages);
  }

 private:
  int any() {
    const std::vector<int> tags = cache_.tags();
    return tags.empty() ? -1 : tags[std::size_t(dice_.below(int(tags.size())))];
  }
  void step(int tag) {
    const int tokens = 1 + dice_.below(6);
    if (cache_.reserve(tag, tokens)) cache_.step(tag, tokens);
  }
  void fork_or_reorder(int tag) {
    if (cache_.tags().size() < 4) {
      cache_.fork(tag, next_);
      ++next_;
    } else if (const int other = any(); other != tag) {
      cache_.reorder(tag, other);
    }
  }

  evicted_cache<Policy> cache_;
  dice dice_;
  int next_ = 0;
};

// The same places in every list.
std::vector<int> everywhere(const std::vector<int>& places) {
  std::vector<int> all;
  for (int list = 0; list < evicted_cache<plain>::lists; ++list) all.insert(all.end(), places.begin(), places.end());
  return all;
}

template <class Cache>
void refuses(Cache& cache, int tag, const std::vector<int>& places, const std::string& text) {
  const auto keep = [&] { cache.owner().keep(host(), cache.at(tag), places); };
  CHECK_THROWS_AS(keep(), invalid_argument);
  CHECK_THROWS_WITH(keep(), containing(text));
  cache.check();
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("keep: random operations agree with a plain model", "[cache]", policies) {
  random_walk<TestType>(1).run(400);
}

TEST_CASE("keep: pages that hold no rows any more are free, and the text goes on behind its last token", "[cache]") {
  evicted_cache<plain> cache{plain()};
  cache.open(0);
  cache.grow_to(0, 40);
  const idx before = cache.owner().free_pages();
  cache.owner().reserve(cache.at(0), 20);
  REQUIRE(cache.keep(0, everywhere({0, 1, 5, 7, 20, 33, 38, 39})));
  CHECK(cache.owner().free_pages() == before + 8);  // 2 pages of 10, and what was reserved
  CHECK(cache.owner().length(cache.at(0)) == 40);
  CHECK(cache.owner().kept(cache.at(0)) == 8);
  cache.grow_to(0, 47);
  CHECK(cache.positions(0, 3) == std::vector<idx>{0, 1, 5, 7, 20, 33, 38, 39, 40, 41, 42, 43, 44, 45, 46});
  REQUIRE(cache.keep(0, everywhere({1, 3, 9, 14})));
  CHECK(cache.positions(0, 0) == std::vector<idx>{1, 7, 41, 46});
  cache.check();
  cache.grow_to(0, 60);
}

TEST_CASE("keep: there is no end to a text of which little is kept", "[cache]") {
  evicted_cache<plain> cache{plain()};
  dice die(3);
  cache.open(0);
  while (cache.length(0) < 1200) {
    cache.grow_to(0, cache.length(0) + 37);
    REQUIRE(cache.keep(0, cache.random_places(0, 19, die)));
  }
  cache.check();
  CHECK(cache.free_pages() == cache.owner().bytes().body_pages - 5);
}

TEST_CASE("keep: a fork's pages stay as they are, and what does not move is still shared", "[cache]") {
  evicted_cache<plain> cache{plain()};
  cache.open(0);
  cache.grow_to(0, 32);
  REQUIRE(cache.fork(0, 1));
  CHECK(cache.owner().free_pages() == 50 - 8);
  std::vector<int> all_but_one;
  for (int i = 0; i < 32; ++i)
    if (i != 18) all_but_one.push_back(i);
  REQUIRE(cache.keep(1, everywhere(all_but_one)));
  CHECK(cache.owner().free_pages() == 50 - 8 - 4);  // of 8 pages the first 4 are those of both
  cache.check();
  cache.grow_to(0, 40), cache.grow_to(1, 40);
  REQUIRE(cache.keep(0, everywhere({0, 39})));
  cache.check();
  cache.grow_to(1, 50);
}

TEST_CASE("keep: takes pages for what others have too, or changes nothing", "[cache]") {
  cache_shape scarce = evicted_cache<plain>::shape;
  scarce.tokens = 36;
  evicted_cache<plain> cache(plain(), 1, scarce);
  cache.open(0);
  cache.grow_to(0, 32);
  REQUIRE(cache.fork(0, 1));
  CHECK_FALSE(cache.keep(1, everywhere({1, 2, 3, 4, 5, 6})));  // 2 pages, and 1 is free
  CHECK(cache.keep(1, everywhere({1, 2, 3, 4})));
  cache.check();
}

TEST_CASE("keep: nothing may stay, and all may", "[cache]") {
  evicted_cache<plain> cache{plain()};
  cache.open(0);
  cache.keep(0, {});
  cache.grow_to(0, 9);
  std::vector<int> all;
  for (int i = 0; i < 9; ++i) all.push_back(i);
  REQUIRE(cache.keep(0, everywhere(all)));
  cache.check();
  cache.truncate(0, 4);
  cache.grow_to(0, 9);
  REQUIRE(cache.keep(0, {}));
  CHECK(cache.owner().kept(cache.at(0)) == 0);
  CHECK(cache.owner().free_pages() == 50);
  cache.grow_to(0, 12);
  CHECK(cache.positions(0, 1) == std::vector<idx>{9, 10, 11});
}

TEST_CASE("keep: a sequence is cut where heads agree on what is left", "[cache]") {
  evicted_cache<plain> cache{plain()};
  cache.open(0);
  cache.grow_to(0, 20);
  std::vector<int> places;
  for (const std::vector<int>& one :
       {std::vector<int>{0, 4, 9, 18, 19}, {1, 3, 12, 18, 19}, {0, 4, 9, 18, 19}, {2, 4, 9, 18, 19}})
    places.insert(places.end(), one.begin(), one.end());
  REQUIRE(cache.keep(0, places));
  cache.grow_to(0, 24);
  REQUIRE(cache.truncate(0, 22));
  REQUIRE(cache.truncate(0, 19));  // among rows that all have kept
  cache.check();
  const auto cut = [&] { cache.owner().truncate(cache.at(0), 11); };
  CHECK_THROWS_WITH(cut(), containing("is truncated to 11; of the tokens before it 2 are kept in head 1 of layer 0 and "
                                      "3 in the first: it can be cut to 18 or more"));
  cache.check();
  REQUIRE(cache.truncate(0, 13));  // each has kept 3 before it
  cache.check();
  cache.grow_to(0, 20);
  CHECK(cache.positions(0, 1) == std::vector<idx>{1, 3, 12, 13, 14, 15, 16, 17, 18, 19});
  REQUIRE(cache.truncate(0, 0));
  cache.grow_to(0, 8);
  cache.check();
}

TEST_CASE("keep: lists that cannot be meant are refused by name", "[cache]") {
  evicted_cache<plain> cache{plain()};
  cache.open(0);
  cache.grow_to(0, 12);
  refuses(cache, 0, {0, 1, 2}, "keeps 3 rows in 2 layers of 2 KV heads; the same number in each is needed");
  refuses(cache, 0, everywhere({0, 3, 3}), "keeps row 3 after 3 in head 0 of layer 0; rows of 12 going up are needed");
  refuses(cache, 0, {0, 1, 0, 1, 0, 1, 5, 12}, "keeps row 12 after 5 in head 1 of layer 1");
  refuses(cache, 0, {0, 1, -1, 1, 0, 1, 0, 1}, "keeps row -1 after -1 in head 1 of layer 0");
  std::vector<int> more;
  for (int i = 0; i < 13; ++i) more.push_back(i);
  refuses(cache, 0, everywhere(more), "keeps 13 of 12 rows in head 0 of layer 0");
  CHECK_THROWS_AS(cache.owner().keep(host(), sequence{}, {}), invalid_argument);

  std::vector<unsigned char> workspace(cache.owner().workspace_bytes(host(), 1));
  const sequence s = cache.at(0);
  const int none = 0;
  cache.owner().begin(host(), {&s, 1}, {&none, 1}, workspace);
  CHECK_THROWS_WITH(cache.owner().keep(host(), s, {}), containing("keep: step"));
  cache.owner().cancel();
}

TEST_CASE("keep: rows in 16 bit stay", "[cache]") {
  using with_ends = kept_policy<paged<4>, int4, int4, 3, 9>;
  evicted_cache<with_ends> cache{with_ends()};
  cache.open(0);
  cache.grow_to(0, 30);
  const position_range may_go = cache.owner().evictable(cache.at(0));
  CHECK(may_go.first == 3);
  CHECK(may_go.last <= 30 - 8);
  refuses(cache, 0, everywhere({0, 1, 2}), "keeps 3 of 30 rows in head 0 of layer 0; ");
  std::vector<int> places;
  for (int i = 0; i < 30; ++i)
    if (i < 2 || i > 3) places.push_back(i);
  refuses(cache, 0, everywhere(places), "keeps row 4 as number 2 of 28 in head 0 of layer 0; the first 3 and the last");
}

TEST_CASE("keep: column sums are of the rows that are there", "[cache]") {
  evicted_cache<plain> cache{plain()};
  dice die(5);
  cache.open(0);
  cache.grow_to(0, 50);
  REQUIRE(cache.keep(0, cache.random_places(0, 21, die)));
  cache.grow_to(0, 53);
  const sequence s = cache.at(0);
  const int none = 0, heads = 2, group = 2, rows = int(cache.rows(0));
  std::vector<unsigned char> workspace(cache.owner().workspace_bytes(host(), 1));
  step now = cache.owner().begin(host(), {&s, 1}, {&none, 1}, workspace);
  step_item item = now.items[0];
  item.queries = 2, now.items = &item, now.q_rows = 2;
  const tensor<float> q = random_tensor(9, 2, heads * group, 32);
  answer<> got(2, heads * group, 16);
  const attention a{causal{}};
  const auto view = cache.owner().view(1);
  a(host(), view, now, q.rows(), got.out.rows(), got.lse_rows());
  std::vector<float> mass(std::size_t(heads * rows), 0.0f);
  column_mass(host(), a, view, now, q.rows(), got.lse_rows(), packed_rows(mass.data(), heads, rows));
  cache.owner().cancel();

  for (int head = 0; head < heads; ++head) {
    std::vector<double> want(std::size_t(rows), 0.0);
    for (int i = 0; i < 2; ++i)
      for (int h = head * group; h < (head + 1) * group; ++h) {
        std::vector<double> weights;
        double sum = 0;
        for (const idx position : cache.positions(0, heads + head)) {
          const std::vector<double> k = cache.key(0, heads + head, position);
          double dot = 0;
          for (std::size_t d = 0; d < k.size(); ++d) dot += k[d] * double(q.row(i, h)[d]);
          weights.push_back(position <= 51 + i ? std::exp(dot / std::sqrt(32.0)) : 0);
          sum += weights.back();
        }
        for (std::size_t r = 0; r < weights.size(); ++r) want[r] += weights[r] / sum;
      }
    CHECK(difference(std::span(mass).subspan(std::size_t(head * rows), std::size_t(rows)), want) == "");
  }
}

TEST_CASE("keep: what is left gives the bits of a text that never had more", "[cache]") {
  using wide = policy<paged<16>, fp32<32>, fp32<16>, listed>;
  const cache_shape shape{.layers = 1, .kv_heads = 2, .tokens = 320};
  const tensor<float> k = random_tensor(1, 300, 2, 32), v = random_tensor(2, 300, 2, 16),
                      q = random_tensor(3, 1, 4, 32);
  std::vector<int> places;
  for (int i = 0; i < 300; ++i)
    if (i % 7 < 2) places.push_back(i);
  const auto answer_of = [&](const tensor<float>& keys, const tensor<float>& values, bool evict) {
    cache<wide> owner(shape, host_memory());
    const sequence s = owner.open();
    owner.reserve(s, keys.tokens());
    std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
    const int tokens = int(keys.tokens()), none = 0;
    const step filled = owner.begin(host(), {&s, 1}, {&tokens, 1}, workspace);
    append(host(), owner.view(0), filled, keys.rows(), values.rows());
    owner.commit(filled);
    std::vector<int> both = places;
    both.insert(both.end(), places.begin(), places.end());
    if (evict) owner.keep(host(), s, both);
    step now = owner.begin(host(), {&s, 1}, {&none, 1}, workspace);
    step_item item = now.items[0];
    item.queries = 1, now.items = &item, now.q_rows = 1;
    answer<> got(1, 4, 16);
    attention{causal{}}(host(), owner.view(0), now, q.rows(), got.out.rows(), got.lse_rows());
    got.out.data.insert(got.out.data.end(), got.lse.begin(), got.lse.end());
    return got.out.data;
  };
  const auto left_of = [&](const tensor<float>& all) {
    tensor<float> left(idx(places.size()), all.heads, all.dim);
    for (std::size_t i = 0; i < places.size(); ++i)
      for (int head = 0; head < all.heads; ++head)
        std::copy_n(all.row(places[i], head).begin(), all.dim, left.rows().at(idx(i), head));
    return left;
  };
  CHECK(same_bits(answer_of(k, v, true), answer_of(left_of(k), left_of(v), false)));
}

TEST_CASE("keep: a path of a tree is kept behind what is left", "[cache]") {
  evicted_cache<plain> cache{plain()};
  dice die(7);
  cache.open(0);
  cache.grow_to(0, 30);
  REQUIRE(cache.keep(0, cache.random_places(0, 13, die)));
  auto& owner = cache.owner();
  const sequence s = cache.at(0), other = owner.fork(host(), s);
  const tensor<float> k = random_tensor(1, 4, 2, 32), v = random_tensor(2, 4, 2, 16);
  const std::vector<int> path = {1, 3};
  std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
  const auto append_rows = [&](sequence to, int tokens, const tensor<float>& keys, const tensor<float>& values) {
    owner.reserve(to, tokens);
    const step now = owner.begin(host(), {&to, 1}, {&tokens, 1}, workspace);
    for (int layer = 0; layer < 2; ++layer) append(host(), owner.view(layer), now, keys.rows(), values.rows());
    return now;
  };
  const step tree = append_rows(s, 4, k, v);
  const int accepted = 2;
  for (int layer = 0; layer < 2; ++layer) keep_path(host(), owner.view(layer), tree, path, {&accepted, 1});
  owner.commit(tree, {&accepted, 1});
  tensor<float> path_k(2, 2, 32), path_v(2, 2, 16);
  for (int i = 0; i < 2; ++i)
    for (int head = 0; head < 2; ++head) {
      std::copy_n(k.row(path[std::size_t(i)], head).begin(), 32, path_k.rows().at(i, head));
      std::copy_n(v.row(path[std::size_t(i)], head).begin(), 16, path_v.rows().at(i, head));
    }
  owner.commit(append_rows(other, 2, path_k, path_v));
  const auto rows_of = [&](sequence of) {
    std::vector<float> all;
    for (int layer = 0; layer < 2; ++layer)
      for (int head = 0; head < 2; ++head)
        each_row(owner.view(layer), owner.holds(of), owner.row(of), head,
                 [&](const auto& seg, place p, idx position, idx) {
                   float key[32], value[16];
                   decode_row(seg.k, seg.k_row(p, head), key), decode_row(seg.v, seg.v_row(p, head), value);
                   all.push_back(float(position));
                   all.insert(all.end(), key, key + 32), all.insert(all.end(), value, value + 16);
                 });
    return all;
  };
  CHECK(owner.kept(s) == 15);
  CHECK(same_bits(rows_of(s), rows_of(other)));
}
