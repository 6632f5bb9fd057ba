#include "support/catch.hpp"
#include "support/foreign.hpp"

#include <kvilt/cache/view.hpp>

namespace {

using namespace kvilt;
using namespace support;

constexpr int heads = 2, group = 3;

template <class K>
using body_of = segment<contiguous, interval<part::body, keep_all>, K>;
static_assert(std::is_trivially_copyable_v<view<memory_space::host, body_of<fp32<>>, body_of<fp16<>>>>);
static_assert(host_view<view<memory_space::host, body_of<fp32<>>>>);
static_assert(!host_view<view<memory_space::device, body_of<fp32<>>>>);
static_assert(view<memory_space::host, body_of<fp32<>>, body_of<fp16<>>, body_of<q8<>>>::segments == 3);

// Two layers of a ragged batch with an empty sequence, in three steps; every output and log-sum-exp.
template <class Make>
std::vector<float> talk(int k_dim, int v_dim, Make view_of_layer) {
  std::vector<float> all;
  std::vector<idx> length = {0, 0, 0};
  for (const std::vector<int>& tokens : {std::vector{37, 0, 5}, std::vector{1, 0, 20}, std::vector{1, 0, 1}}) {
    const planned_step s(host(), length, tokens, {}, k_dim, v_dim);
    for (int layer = 0; layer < 2; ++layer) {
      const auto seed = std::uint64_t(length[0] + layer);
      const tensor<float> k = random_tensor(3 * seed, s->kv_rows, heads, k_dim),
                          v = random_tensor(3 * seed + 1, s->kv_rows, heads, v_dim),
                          q = random_tensor(3 * seed + 2, s->q_rows, heads * group, k_dim);
      answer<> a(s->q_rows, heads * group, v_dim);
      append(host(), view_of_layer(layer), s, k.rows(), v.rows());
      attention{causal{}}(host(), view_of_layer(layer), s, q.rows(), a.out.rows(), a.lse_rows());
      all.insert(all.end(), a.out.data.begin(), a.out.data.end());
      all.insert(all.end(), a.lse.begin(), a.lse.end());
    }
    for (std::size_t i = 0; i < 3; ++i) length[i] += tokens[i];
  }
  return all;
}

template <class Layout, class K, class V>
auto one_segment(const Layout& layout, const K& k, const V& v, const geometry& planes) {
  using body = segment<Layout, interval<part::body, keep_all>, K, V>;
  return make_view<memory_space::host>(heads, body{layout, interval<part::body, keep_all>(), k, v, planes});
}

template <class K, class V>
std::vector<float> talk_contiguously(const K& k, const V& v) {
  using kv = policy<contiguous, K, V>;
  cache<kv> owner({.layers = 2, .kv_heads = heads, .sequences = 3, .tokens = 120}, host_memory(), kv(k, v));
  return talk(k.dim(), v.dim(), [&](int layer) { return owner.view(layer); });
}

template <class K, class V, class Layout>
void each_arrangement(const K& k, const V& v, int page, Layout layout, const std::vector<float>& want) {
  for (const arrangement arranged : {arrangement::four_pools, arrangement::interleaved})
    for (const page_order order : {page_order::up, page_order::down, page_order::shuffled}) {
      const auto used = [&](idx tokens) { return (tokens + page - 1) / page; };
      const idx width = used(40) + 2;
      foreign_pool<K, V> pool(k, v, heads, page, 3 * width, arranged);
      const std::vector<page_id> table = foreign_table(3, width, {used(39), 0, used(26)}, order);
      INFO("pages of " << page << ", arrangement " << int(arranged) << ", order " << int(order));
      CHECK(
          same_bits(talk(k.dim(), v.dim(),
                         [&](int layer) { return one_segment(layout(table.data(), width), k, v, pool.planes(layer)); }),
                    want));
    }
}

template <class K, class V>
void each_page_size(const K& k, const V& v) {
  const std::vector<float> want = talk_contiguously(k, v);
  for (const int page : {1, 2, 3, 16, 19, 64})
    each_arrangement(
        k, v, page, [&](const page_id* table, idx width) { return paged<>(page, table, width); }, want);
}

}  // namespace

TEST_CASE("view: foreign pages of any stride, size and order give the bits of contiguous memory", "[cache]") {
  each_page_size(fp32<>(16), fp32<>(24));
  each_page_size(q8<>(40), q4<>(24));
  each_page_size(rotated<q4<>>(24), fp16<>(40));
}

TEST_CASE("view: a page size in the type changes nothing over foreign memory", "[cache]") {
  const q8<> k(40);
  const q4<> v(24);
  each_arrangement(
      k, v, 3, [](const page_id* table, idx width) { return paged<3>(table, width); }, talk_contiguously(k, v));
}

TEST_CASE("view: contiguous memory of an engine's own, in its own strides", "[cache]") {
  const q8<> k(40);
  const q4<> v(24);
  for (const arrangement arranged : {arrangement::four_pools, arrangement::interleaved}) {
    foreign_pool<q8<>, q4<>> pool(k, v, heads, 50, 3, arranged);
    CHECK(same_bits(talk(40, 24, [&](int layer) { return one_segment(contiguous{50}, k, v, pool.planes(layer)); }),
                    talk_contiguously(k, v)));
  }
}

TEST_CASE("view: three segments by hand are one softmax", "[cache]") {
  // 4 sinks in 32 bit, a body in pages, and a tail that nothing has left: exact, so equal to one segment.
  constexpr int sinks = 4;
  const fp32<> f(16);
  foreign_pool<fp32<>, fp32<>> first(f, f, heads, sinks, 3, arrangement::four_pools),
      middle(f, f, heads, 3, 60, arrangement::interleaved), last(f, f, heads, 60, 3, arrangement::four_pools);
  const std::vector<page_id> table = foreign_table(3, 20, {20, 20, 20}, page_order::shuffled);
  using sinks_of = segment<contiguous, interval<part::sinks, keep_all>, fp32<>>;
  using body = segment<paged<>, interval<part::body, keep_all>, fp32<>>;
  using tail_of = segment<contiguous, interval<part::tail, keep_all>, fp32<>>;
  const auto three = [&](int layer) {
    return make_view<memory_space::host>(
        heads, sinks_of{{sinks}, interval<part::sinks, keep_all>(keep_all(), sinks), f, f, first.planes(layer)},
        body{paged<>(3, table.data(), 20), interval<part::body, keep_all>(keep_all(), sinks), f, f,
             middle.planes(layer)},
        tail_of{{60}, interval<part::tail, keep_all>(keep_all(), sinks, {0, 60}), f, f, last.planes(layer)});
  };
  static_assert(decltype(three(0))::segments == 3);
  CHECK(same_bits(talk(16, 16, three), talk_contiguously(f, f)));
}

TEST_CASE("view: its head count and dims are its segments'", "[cache]") {
  const auto v = one_segment(contiguous{8}, q8<>(40), q4<>(24), geometry{});
  CHECK(v.kv_heads() == heads);
  CHECK(v.k_dim() == 40);
  CHECK(v.v_dim() == 24);
}
