#include "support/catch.hpp"
#include "support/kept_rows.hpp"
#include "support/random_places.hpp"
#include "support/saved_files.hpp"

#include <kvilt/core/thread_pool.hpp>
#include <kvilt/kvilt.hpp>

namespace {

using namespace kvilt;
using support::kept_cache;
using support::test_folder;

constexpr cache_shape small = {
    .layers = 2, .kv_heads = 2, .sequences = 3, .tokens = 240, .max_length = 80, .max_step = 5};
// Wider in every way that may be.
constexpr cache_shape large = {
    .layers = 2, .kv_heads = 2, .sequences = 5, .tokens = 600, .max_length = 120, .max_step = 9};

// A policy over one layout, and the same rows over another.
template <class Policy, class Other>
struct pair_of {
  static Policy from(int width = 11) { return make<Policy>(width); }
  static Other to(int width = 11) { return make<Other>(width); }

 private:
  template <class P>
  static P make(int width) {
    using rule = typename P::retention_type;
    typename P::layout_type layout;
    if constexpr (std::is_same_v<decltype(layout), paged<>>) layout = paged<>(7);
    if constexpr (rule::slides)
      return P(typename P::k_format(), typename P::v_format(), rule(width), layout);
    else
      return P(typename P::k_format(), typename P::v_format(), rule(), layout);
  }
};

template <class A, class B, class K, class V, class Rule = keep_all, int Sinks = 0, int Tail = 0,
          template <int> class Exact = fp16>
using moved = pair_of<policy<A, K, V, Rule, Sinks, Tail, Exact>, policy<B, K, V, Rule, Sinks, Tail, Exact>>;

using latent = concat<e4m3<64, 32>, bf16<16>>;

using pairs = std::tuple<moved<contiguous, paged<16>, fp32<16>, q8<24>>,    //
                         moved<paged<3>, contiguous, fp16<8>, q4<32, 32>>,  //
                         moved<paged<16>, paged<>, rotated<q8<32>>, q4<64>, keep_all, 4, 6>,
                         moved<paged<4>, paged<1>, fp32<8>, q4<16>, window<dynamic, 3>, 3, 6>,
                         moved<paged<2>, paged<5>, bf16<16>, fp32<8>, window<>>,
                         moved<paged<16>, paged_by_head<3>, q8<16>, fp16<8>>,
                         moved<paged_by_head<4>, paged_by_head<2>, q4<16>, fp32<8>, window<dynamic, 3>, 3, 6>,
                         moved<contiguous, paged<2>, e4m3<16>, fp16<8>, window<dynamic, 2>>,
                         moved<contiguous, contiguous, q8<16>, fp32<8>, window<>, 0, 5, bf16>,
                         moved<paged<32>, paged<64>, q4_channel<32, 32>, q4<32>, keep_all, 2, 34>,
                         moved<paged<2>, paged<16>, latent, prefix<latent, 64>>,
                         moved<paged<16>, contiguous, e4m3_static<16>, q8_static<8>>>;

using evicted_pairs = std::tuple<moved<paged<4>, paged<16>, fp32<16>, q8<24>, listed>,
                                 moved<contiguous, paged<3>, fp16<8>, q4<32>, listed>,
                                 moved<paged<2>, contiguous, rotated<q8<32>>, q4<64>, listed, 3, 9>,
                                 moved<paged<16>, paged<1>, q4<32>, e4m3<16>, listed, 2>>;

// Where windows, tails, tiles and pages of all of the policies have edges, and further.
constexpr idx some_lengths[] = {0, 1, 3, 4, 16, 33, 41, 68, 71};

}  // namespace

TEMPLATE_LIST_TEST_CASE("save: what is restored into another layout is the same and goes on bit for bit", "[tiers]",
                        pairs) {
  const test_folder folder;
  for (const idx length : some_lengths) {
    INFO("length " << length);
    kept_cache one(TestType::from(), small);
    kept_cache other(TestType::to(), large, 0xff);
    const sequence neighbour = one.owner.open(), s = one.owner.open();
    one.grow(neighbour, 7, 10);
    one.grow(s, 8, length);
    const sequence there = other.owner.open();
    other.grow(there, 9, 13);
    const auto neighbours_bytes = other.bytes(there);

    save(host(), one.owner, s, folder / "text", {"a model", std::vector<std::uint64_t>{3, 4}, {}});
    const sequence_file<> file(folder / "text");
    CHECK(file.length() == length);
    CHECK(file.model() == "a model");
    CHECK(file.stream_bytes() == idx(one.bytes(s).size()));
    const sequence back = restore(host(), other.owner, file, {"a model", std::vector<std::uint64_t>{3, 4}, {}});

    REQUIRE(other.owner.length(back) == length);
    REQUIRE(other.bytes(back) == one.bytes(s));
    REQUIRE(other.bytes(there) == neighbours_bytes);
    for (const int tokens : {1, 4, 1, 2}) REQUIRE(other.step(back, 8, tokens) == one.step(s, 8, tokens));
    REQUIRE(other.bytes(back) == one.bytes(s));
    other.owner.close(back);
    other.owner.close(there);
    CHECK(other.owner.free_pages() == kept_cache(TestType::to(), large).owner.free_pages());
  }
}

// Positions of all rows, in the order of layers, heads and places.
template <class Cache>
std::vector<idx> positions_of(const Cache& owner, sequence s) {
  std::vector<idx> all;
  for (int layer = 0; layer < owner.shape().layers; ++layer)
    for (int head = 0; head < owner.shape().kv_heads; ++head)
      each_row(owner.view(layer), owner.holds(s), owner.row(s), head,
               [&](const auto&, place, idx position, idx) { all.push_back(position); });
  return all;
}

TEMPLATE_LIST_TEST_CASE("save: what is left of an evicted text is restored with its positions and goes on", "[tiers]",
                        evicted_pairs) {
  const test_folder folder;
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    INFO("seed " << seed);
    support::dice die(seed), again(seed + 100);
    kept_cache one(TestType::from(), small);
    kept_cache other(TestType::to(), large, 0xff);
    const sequence s = one.owner.open(), there = other.owner.open();
    other.grow(there, 9, 13);
    const auto neighbours_bytes = other.bytes(there);
    const auto evict = [](auto& from, sequence of, support::dice& by) {
      const position_range may_go = from.owner.evictable(of);
      const idx most = may_go.last - may_go.first, least = from.owner.kept(of) - most;
      from.owner.keep(host(), of,
                      random_places(from.owner, of, least + by.below(int(std::min<idx>(most, 25)) + 1), by));
    };
    // NOTE: more than the cache has room for at one time, and so that some rows of the end are not on record.
    for (int i = 0; i < 4; ++i) {
      one.grow(s, 8, one.owner.length(s) + 30 + die.below(12));
      evict(one, s, die);
    }
    one.grow(s, 8, one.owner.length(s) + die.below(9));

    save(host(), one.owner, s, folder / "text");
    const sequence_file<> file(folder / "text");
    const sequence back = restore(host(), other.owner, file);
    REQUIRE(other.owner.length(back) == one.owner.length(s));
    REQUIRE(other.owner.kept(back) == one.owner.kept(s));
    REQUIRE(positions_of(other.owner, back) == positions_of(one.owner, s));
    REQUIRE(other.bytes(back) == one.bytes(s));
    REQUIRE(other.bytes(there) == neighbours_bytes);

    for (const int tokens : {1, 4, 2}) REQUIRE(other.step(back, 8, tokens) == one.step(s, 8, tokens));
    support::dice same = again;
    evict(one, s, again), evict(other, back, same);
    REQUIRE(other.step(back, 8, 3) == one.step(s, 8, 3));
    one.owner.truncate(s, one.owner.length(s) - 2), other.owner.truncate(back, other.owner.length(back) - 2);
    REQUIRE(other.step(back, 8, 5) == one.step(s, 8, 5));
    CHECK(positions_of(other.owner, back) == positions_of(one.owner, s));
    CHECK(other.bytes(back) == one.bytes(s));
    other.owner.close(back);
    other.owner.close(there);
    CHECK(other.owner.free_pages() == kept_cache(TestType::to(), large).owner.free_pages());
  }
}

TEST_CASE("save: a tail whose tokens have left it stays as it is", "[tiers]") {
  const test_folder folder;
  using kind = moved<paged<16>, paged<4>, rotated<q8<32>>, q4<64>, keep_all, 4, 6>;
  kept_cache one(kind::from(), small);
  kept_cache other(kind::to(), large);
  const sequence s = one.owner.open();
  one.grow(s, 8, 40);
  one.owner.truncate(s, 35);  // the body has what a sequence of 35 tokens would have in its tail
  save(host(), one.owner, s, folder / "text");
  const sequence back = restore(host(), other.owner, sequence_file(folder / "text"));
  CHECK(one.owner.holds(s).body_after > detail::holding<decltype(one)::policy_type>(35).body_after);
  CHECK(other.owner.holds(back).body_after == one.owner.holds(s).body_after);
  CHECK(other.bytes(back) == one.bytes(s));
  CHECK(other.step(back, 8, 3) == one.step(s, 8, 3));
}

TEST_CASE("save: a window's sequence takes the pages that it shows", "[tiers]") {
  const test_folder folder;
  using kind = moved<paged<2>, paged<2>, bf16<16>, fp32<8>, window<>>;
  cache_shape narrow = small;
  narrow.tokens = 24, narrow.max_length = 4000, narrow.max_step = 4;
  kept_cache one(kind::from(), narrow), other(kind::to(), narrow);
  const sequence s = one.owner.open();
  one.grow(s, 8, 3001);
  save(host(), one.owner, s, folder / "text");
  const sequence back = restore(host(), other.owner, sequence_file(folder / "text"));
  CHECK(other.owner.free_pages() == 12 - 6);  // 10 tokens back from an odd one are on 6 pages of 2
  CHECK(other.bytes(back) == one.bytes(s));
  CHECK(other.step(back, 8, 4) == one.step(s, 8, 4));
}

TEST_CASE("save: more than a block, on all workers, is what one thread writes", "[tiers][threads]") {
  const test_folder folder;
  thread_pool pool(4);
  using kind = moved<contiguous, paged<16>, fp32<64>, rotated<q8<64>>>;
  const cache_shape room = {.layers = 3, .kv_heads = 2, .sequences = 1, .tokens = 1024, .max_step = 64};
  kept_cache one(kind::from(), room);
  kept_cache other(kind::to(), room);
  const sequence s = one.owner.open();
  for (int i = 0; i < 16; ++i) one.step(s, 8, 63);
  save(host(), one.owner, s, folder / "one", {}, durability::program);
  save(host(pool), one.owner, s, folder / "four");
  CHECK(sequence_file(folder / "one").stream_bytes() > 7 * idx(detail::saved_header::usual_block));
  CHECK(support::bytes_of(folder / "one") == support::bytes_of(folder / "four"));
  const sequence back = restore(host(pool), other.owner, sequence_file(folder / "four"));
  CHECK(other.bytes(back) == one.bytes(s));
}

TEST_CASE("save: a set of caches is one file", "[tiers]") {
  const test_folder folder;
  using global = policy<paged<16>, rotated<q8<16>>, q4<16>, keep_all, 2, 6>;
  using local = policy<contiguous, fp16<16>, fp16<16>, window<>>;
  using local_pages = policy<paged<4>, fp16<16>, fp16<16>, window<>>;
  const set_shape shape = {.sequences = 2, .tokens = 160, .max_length = 80, .max_step = 4};
  cache_set<global, local> one(shape, host_memory(), layer_group<global>{{1, 4}, 2},
                               layer_group<local>{{0, 2, 3}, 2, local({}, {}, window<>(9))});
  cache_set<global, local_pages> other(shape, host_memory(), layer_group<global>{{1, 4}, 2},
                                       layer_group<local_pages>{{0, 2, 3}, 2, local_pages({}, {}, window<>(9)), 40});
  const auto step = [&](auto& set, sequence s, int tokens) {
    std::vector<unsigned char> workspace(set.workspace_bytes(host(), 1));
    set.reserve(s, tokens);
    const std::uint64_t first = std::uint64_t(set.length(s));
    const auto now = set.begin(host(), {&s, 1}, {&tokens, 1}, workspace);
    std::vector<float> all;
    for (int layer = 0; layer < set.layers(); ++layer) {
      support::tensor<float> k = support::random_tensor(support::mixed({first, std::uint64_t(layer)}), tokens, 2, 16),
                             q = support::random_tensor(support::mixed({first, 99}), tokens, 4, 16), out = q;
      set.visit(layer, now, [&](const auto& view, const kvilt::step& in, const head_range& heads) {
        append(host(), view, in, heads.kv(k.rows()), heads.kv(k.rows()));
        attention{causal{}}(host(), view, in, heads.queries(q.rows()), heads.queries(out.rows()));
      });
      all.insert(all.end(), out.data.begin(), out.data.end());
    }
    set.commit(now);
    return all;
  };
  const sequence s = one.open();
  for (int i = 0; i < 15; ++i) step(one, s, 4);
  save(host(), one, s, folder / "text");
  const sequence back = restore(host(), other, sequence_file(folder / "text"));
  REQUIRE(other.length(back) == 60);
  for (const int tokens : {1, 4, 2}) CHECK(step(other, back, tokens) == step(one, s, tokens));

  cache_set<global, local> elsewhere(shape, host_memory(), layer_group<global>{{0, 4}, 2},
                                     layer_group<local>{{1, 2, 3}, 2, local({}, {}, window<>(9))});
  CHECK_THROWS_WITH(restore(host(), elsewhere, sequence_file(folder / "text")),
                    support::containing("share the heads out otherwise"));
  CHECK(elsewhere.free_sequences() == 2);
}
