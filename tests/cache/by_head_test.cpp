#include "support/catch.hpp"
#include "support/evicted_cache.hpp"
#include "support/memory.hpp"
#include "support/tensors.hpp"

#include <kvilt/kvilt.hpp>

#include <map>
#include <tuple>

namespace {

using namespace kvilt;
using namespace support;

template <class Shared, class Apart>
struct twins {
  using shared = Shared;
  using apart = Apart;
};
template <int P, template <int> class K, template <int> class V, class Rule = keep_all, int Sinks = 0, int Tail = 0>
using pages_of =
    twins<policy<paged<P>, K<32>, V<16>, Rule, Sinks, Tail>, policy<paged_by_head<P>, K<32>, V<16>, Rule, Sinks, Tail>>;
template <int D>
using int8_rotated = rotated<q8<D>>;
template <int D>
using int4 = q4<D>;
template <int D>
using half = fp16<D>;

using pairs =
    std::tuple<pages_of<3, half, int4>, pages_of<16, int8_rotated, half>, pages_of<4, half, half, window<9, 2>>,
               pages_of<2, int4, int4, keep_all, 5, 3>, pages_of<8, int8_rotated, int4, window<7>, 0, 6>,
               pages_of<1, half, int8_rotated, listed, 0, 4>>;

constexpr int layers = 2, heads = 3, group = 2, lists = layers * heads;

// The same operations on a cache whose pages hold all heads, and on one whose heads have theirs.
template <class Twins>
class pair_of_caches {
 public:
  static constexpr cache_shape shape{
      .layers = layers, .kv_heads = heads, .sequences = 4, .tokens = 96, .max_length = 60, .max_step = 6};

  explicit pair_of_caches(std::uint64_t seed) : dice_(seed) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      const int kind = dice_.below(10);
      INFO("operation " << i << " of kind " << kind);
      if (open_.empty() || (kind == 0 && int(open_.size()) < shape.sequences)) {
        open_.push_back({shared_.open(), apart_.open()});
      } else if (const std::size_t at = std::size_t(dice_.below(int(open_.size()))); kind < 6) {
        step(open_[at], 1 + dice_.below(6));
      } else if (kind == 6) {
        const idx length = std::max<idx>(0, shared_.length(open_[at].shared) - dice_.below(9));
        both([&] { shared_.truncate(open_[at].shared, length); }, [&] { apart_.truncate(open_[at].apart, length); });
      } else if (kind == 7 && int(open_.size()) < shape.sequences) {
        named child;
        if (both([&] { child.shared = shared_.fork(host(), open_[at].shared); },
                 [&] { child.apart = apart_.fork(host(), open_[at].apart); }))
          open_.push_back(child);
      } else if (kind == 8) {
        const std::size_t other = std::size_t(dice_.below(int(open_.size())));
        if (other == at) continue;
        const int parents[] = {0, 0};
        both(
            [&] {
              shared_.reorder(host(), std::array{open_[at].shared, open_[other].shared}, parents);
            },
            [&] {
              apart_.reorder(host(), std::array{open_[at].apart, open_[other].apart}, parents);
            });
      } else if (kind == 9 && dice_.below(3) == 0) {
        shared_.close(open_[at].shared), apart_.close(open_[at].apart);
        open_.erase(open_.begin() + std::ptrdiff_t(at));
      }
      REQUIRE(apart_.free_pages() == lists * shared_.free_pages());
      REQUIRE(apart_.free_tokens() == shared_.free_tokens());
    }
    for (const named& n : open_) shared_.close(n.shared), apart_.close(n.apart);
    CHECK(apart_.free_pages() == apart_.bytes().body_pages);
  }

 private:
  struct named {
    sequence shared, apart;
  };

  // Whether it was done in both, or refused by both for the same reason.
  template <class First, class Second>
  bool both(First&& first, Second&& second) {
    const auto outcome = [](auto&& run) {
      try {
        run();
        return 0;
      } catch (const out_of_pages&) {
        return 1;
      } catch (const invalid_argument&) {
        return 2;
      }
    };
    const int one = outcome(first);
    REQUIRE(outcome(second) == one);
    return one == 0;
  }
  void step(const named& n, int tokens) {
    if (!both([&] { shared_.reserve(n.shared, tokens); }, [&] { apart_.reserve(n.apart, tokens); })) return;
    ++salt_;
    REQUIRE(same_bits(answers(shared_, n.shared, tokens), answers(apart_, n.apart, tokens)));
  }
  template <class Cache>
  std::vector<float> answers(Cache& owner, sequence s, int tokens) {
    std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
    const kvilt::step now = owner.begin(host(), {&s, 1}, {&tokens, 1}, workspace);
    std::vector<float> all;
    for (int layer = 0; layer < layers; ++layer) {
      const std::uint64_t seed = mixed({salt_, std::uint64_t(layer)});
      const tensor<float> k = random_tensor(seed, tokens, heads, 32), v = random_tensor(seed + 1, tokens, heads, 16),
                          q = random_tensor(seed + 2, tokens, heads * group, 32);
      answer<> got(tokens, heads * group, 16);
      const auto view = owner.view(layer);
      append(host(), view, now, k.rows(), v.rows());
      attention{causal{}}(host(), view, now, q.rows(), got.out.rows(), got.lse_rows());
      all.insert(all.end(), got.out.data.begin(), got.out.data.end());
      all.insert(all.end(), got.lse.begin(), got.lse.end());
    }
    owner.commit(now, {&tokens, 1});
    return all;
  }

  cache<typename Twins::shared> shared_{shape, host_memory()};
  cache<typename Twins::apart> apart_{shape, host_memory()};
  dice dice_;
  std::uint64_t salt_ = 0;
  std::vector<named> open_;
};

using by_head = policy<paged_by_head<4>, fp32<32>, fp32<16>, listed>;
constexpr int model_lists = evicted_cache<by_head>::lists;

// The first `counts[list]` rows of each list but one between them, so that rows move.
std::vector<int> first_rows(const std::vector<int>& sizes) {
  std::vector<int> places;
  for (const int size : sizes)
    for (int i = 0; i < size; ++i) places.push_back(i + (i > 0));
  return places;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("by_head: without eviction it is as pages of all heads, times their number", "[cache]", pairs) {
  pair_of_caches<TestType>(1).run(300);
}

TEST_CASE("by_head: a head of few rows gives its pages to others", "[cache]") {
  evicted_cache<by_head> cache{by_head()};
  auto& owner = cache.owner();
  cache.open(0);
  cache.grow_to(0, 40);
  CHECK(owner.bytes().body_pages == 50 * model_lists);
  CHECK(owner.free_pages() == 40 * model_lists);
  const std::vector<int> sizes = {1, 30, 9, 0};
  REQUIRE(cache.keep(0, first_rows(sizes), sizes));
  CHECK(owner.free_pages() == 50 * model_lists - (1 + 8 + 3 + 0));
  CHECK(owner.kept(cache.at(0)) == 30);
  CHECK(owner.kept(cache.at(0), 0, 0) == 1);
  CHECK(owner.kept(cache.at(0), 1, 0) == 9);
  CHECK(owner.length(cache.at(0)) == 40);
  cache.check();
  cache.grow_to(0, 42);  // of each head's last page as many rows as it takes
  CHECK(owner.free_pages() == 50 * model_lists - (1 + 8 + 3 + 1));
  CHECK(cache.positions(0, 3) == std::vector<idx>{40, 41});
  CHECK(cache.positions(0, 0) == std::vector<idx>{0, 40, 41});
  REQUIRE(cache.fork(0, 1));
  REQUIRE(cache.keep(1, {0, 1, 2, 4, 0}, {3, 1, 0, 1}));
  cache.check();
  cache.grow_to(1, 50), cache.grow_to(0, 44);
  REQUIRE(cache.truncate(0, 20));  // in every head as far as that goes
  CHECK(cache.positions(0, 0) == std::vector<idx>{0});
  CHECK(cache.positions(0, 1).size() == 19);
  cache.check();
  cache.grow_to(0, 30);
  REQUIRE(cache.reorder(1, 0));
  cache.check();
}

TEST_CASE("by_head: a text whose longest head is full can go on when that is cut", "[cache]") {
  evicted_cache<by_head> cache{by_head()};
  cache.open(0);
  cache.grow_to(0, 88);
  const std::vector<int> sizes = {3, 87, 3, 3};
  REQUIRE(cache.keep(0, first_rows(sizes), sizes));
  CHECK_FALSE(cache.reserve(0, 4));  // 91 in one head of 90
  REQUIRE(cache.keep(0, {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2}));
  cache.grow_to(0, 130);
}

TEST_CASE("by_head: sizes that cannot be meant are refused by name", "[cache]") {
  evicted_cache<by_head> cache{by_head()};
  cache.open(0);
  cache.grow_to(0, 12);
  const auto refuses = [&](const std::vector<int>& places, const std::vector<int>& sizes, const std::string& text) {
    const auto keep = [&] { cache.owner().keep(host(), cache.at(0), places, sizes); };
    CHECK_THROWS_AS(keep(), invalid_argument);
    CHECK_THROWS_WITH(keep(), containing(text));
    cache.check();
  };
  refuses({0, 1, 2}, {1, 2, 0}, "keeps rows in 3 heads; there are 2 layers of 2 KV heads");
  refuses({0, 1, 2}, {}, "keeps rows in 0 heads");
  refuses({0, 1, 2}, {1, 2, -1, 1}, "keeps -1 rows in head 0 of layer 1");
  refuses({0, 1, 2}, {1, 1, 0, 0}, "keeps 2 rows in all heads together; 3 are listed");
  refuses({0, 1, 2}, {1, 2, 1, 0}, "keeps 4 rows in all heads together; 3 are listed");
  refuses({0, 3, 3}, {1, 0, 2, 0}, "keeps row 3 after 3 in head 0 of layer 1; rows of 12 going up are needed");
  REQUIRE(cache.keep(0, {0, 1, 2, 3, 4}, {2, 0, 3, 0}));
  refuses({2}, {1, 0, 0, 0}, "keeps row 2 after -1 in head 0 of layer 0; rows of 2 going up are needed");
  refuses({0}, {0, 1, 0, 0}, "keeps 1 of 0 rows in head 1 of layer 0");
  CHECK_THROWS_WITH(cache.owner().kept(cache.at(0), 2, 0), containing("head 0 of layer 2; the cache has 2 KV heads"));
  CHECK_THROWS_WITH(cache.owner().evictable(cache.at(0), 0, -1), containing("head -1 of layer 0"));
}

TEST_CASE("by_head: what is kept of the page tables is refused before it wraps around", "[cache]") {
  const auto refuses = [&](const cache_shape& shape, const std::string& text) {
    CHECK_THROWS_AS(plan_bytes(by_head(), shape), invalid_argument);
    CHECK_THROWS_WITH(plan_bytes(by_head(), shape), containing(text));
  };
  refuses({.layers = 1 << 30, .kv_heads = 1 << 30, .tokens = 1}, "have a page table each; fewer than 2^31");
  refuses({.layers = 1 << 10, .kv_heads = 1 << 10, .sequences = 1 << 11, .tokens = 1}, "2048 sequences, 1024 layers");
  refuses({.layers = 64, .kv_heads = 8, .tokens = 1 << 30, .max_length = 64}, "fewer than 2^31 are supported");
  CHECK_THROWS_AS(cache<by_head>({.layers = 1, .kv_heads = 1, .tokens = 8, .prefixes = true}, host_memory()),
                  invalid_argument);
}

TEST_CASE("by_head: column sums are of each head's own rows", "[cache]") {
  evicted_cache<by_head> cache{by_head()};
  cache.open(0);
  cache.grow_to(0, 50);
  const std::vector<int> sizes = {20, 3, 33, 8};
  REQUIRE(cache.keep(0, first_rows(sizes), sizes));
  cache.grow_to(0, 53);
  const sequence s = cache.at(0);
  const int none = 0, kv_heads = 2, rows = int(cache.rows(0));
  std::vector<unsigned char> workspace(cache.owner().workspace_bytes(host(), 1));
  step now = cache.owner().begin(host(), {&s, 1}, {&none, 1}, workspace);
  step_item item = now.items[0];
  item.queries = 1, now.items = &item, now.q_rows = 1;
  for (int layer = 0; layer < 2; ++layer) {
    const tensor<float> q = random_tensor(9 + std::uint64_t(layer), 1, kv_heads * 2, 32);
    answer<> got(1, kv_heads * 2, 16);
    const attention a{causal{}};
    const auto view = cache.owner().view(layer);
    a(host(), view, now, q.rows(), got.out.rows(), got.lse_rows());
    std::vector<float> mass(std::size_t(kv_heads * rows), 0.0f);
    column_mass(host(), a, view, now, q.rows(), got.lse_rows(), packed_rows(mass.data(), kv_heads, rows));
    for (int head = 0; head < kv_heads; ++head) {
      const std::vector<idx>& kept = cache.positions(0, layer * kv_heads + head);
      std::vector<double> want(std::size_t(rows), 0.0);
      for (int h = head * 2; h < head * 2 + 2; ++h) {
        std::vector<double> weights;
        double sum = 0;
        for (const idx position : kept) {
          const std::vector<double> k = cache.key(0, layer * kv_heads + head, position);
          double dot = 0;
          for (std::size_t d = 0; d < k.size(); ++d) dot += k[d] * double(q.row(0, h)[d]);
          weights.push_back(std::exp(dot / std::sqrt(32.0)));
          sum += weights.back();
        }
        for (std::size_t r = 0; r < weights.size(); ++r) want[r] += weights[r] / sum;
      }
      CHECK(difference(std::span(mass).subspan(std::size_t(head * rows), std::size_t(rows)), want) == "");
    }
  }
  cache.owner().cancel();
}

TEST_CASE("by_head: rows are copied from other layouts and back", "[cache]") {
  using source = policy<paged<16>, fp16<32>, q8<16>>;
  using target = policy<paged_by_head<3>, fp16<32>, q8<16>, listed>;
  const cache_shape shape{.layers = layers, .kv_heads = heads, .sequences = 2, .tokens = 120};
  cache<source> from(shape, host_memory());
  cache<target> to(shape, host_memory());
  cache<source> again(shape, host_memory());
  const sequence s = from.open(), t = to.open(), u = again.open();
  const int tokens = 40;
  std::vector<unsigned char> workspace(from.workspace_bytes(host(), 1));
  from.reserve(s, tokens);
  const step now = from.begin(host(), {&s, 1}, {&tokens, 1}, workspace);
  for (int layer = 0; layer < layers; ++layer)
    append(host(), from.view(layer), now, random_tensor(std::uint64_t(layer), tokens, heads, 32).rows(),
           random_tensor(7 + std::uint64_t(layer), tokens, heads, 16).rows());
  from.commit(now);
  const auto copy = [&](const auto& source_cache, sequence a, auto& target_cache, sequence b) {
    target_cache.reserve(b, tokens);
    const lengths n = target_cache.holds(b, tokens);
    for (int layer = 0; layer < layers; ++layer) {
      const row_copy one{source_cache.row(a), source_cache.holds(a), target_cache.row(b), n, {0, tokens}};
      copy_rows(host(), source_cache.view(layer), target_cache.view(layer), {&one, 1}, workspace);
    }
    target_cache.adopt(b, n);
  };
  copy(from, s, to, t);
  copy(to, t, again, u);
  CHECK(to.kept(t, 1, 2) == 40);
  CHECK(to.free_pages() == (40 - 14) * lists);
  for (int layer = 0; layer < layers; ++layer)
    for (int head = 0; head < heads; ++head) {
      const auto one = from.view(layer).first(), other = again.view(layer).first();
      for (int i = 0; i < tokens; ++i) {
        const row_ref a = one.k_row(one.layout.locate(from.row(s), head, i), head),
                      b = other.k_row(other.layout.locate(again.row(u), head, i), head);
        CHECK(std::equal(a.codes, a.codes + one.k.code_bytes(), b.codes));
      }
    }
}

TEST_CASE("by_head: a group of a set keeps by head, and another in all alike", "[cache]") {
  using plain = policy<paged<4>, fp32<32>, fp32<16>, listed>;
  cache_set<by_head, plain> set({.sequences = 2, .tokens = 160}, host_memory(), layer_group<by_head>{{0, 2}, heads},
                                layer_group<plain>{{1}, heads});
  const sequence s = set.open();
  const int tokens = 20;
  set.reserve(s, tokens);
  std::vector<unsigned char> workspace(set.workspace_bytes(host(), 1));
  const auto now = set.begin(host(), {&s, 1}, {&tokens, 1}, workspace);
  const tensor<float> k = random_tensor(1, tokens, heads, 32), v = random_tensor(2, tokens, heads, 16);
  for (int layer = 0; layer < 3; ++layer)
    set.visit(layer, now, [&](const auto& view, const step& part, const head_range&) {
      append(host(), view, part, k.rows(), v.rows());
    });
  set.commit(now);
  const std::vector<int> sizes = {1, 2, 3, 4, 5, 6};
  set.keep<0>(host(), s, first_rows(sizes), sizes);
  set.keep<1>(host(), s, first_rows({7, 7, 7}));
  for (int list = 0; list < 6; ++list)
    CHECK(set.group<0>().kept(s, list / heads, list % heads) == sizes[std::size_t(list)]);
  CHECK(set.group<1>().kept(s, 0, 2) == 7);
  CHECK_THROWS_WITH(set.keep<0>(host(), s, {}, {}), containing("group 0: sequence"));
  const sequence child = set.fork(host(), s);
  CHECK(child.slot >= 0);
}
