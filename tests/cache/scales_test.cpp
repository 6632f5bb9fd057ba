#include "support/catch.hpp"
#include "support/foreign.hpp"
#include "support/memory.hpp"

#include <kvilt/kvilt.hpp>

#include <tuple>

namespace {

using namespace kvilt;
using namespace support;

constexpr int heads = 3, group = 2, k_dim = 24, v_dim = 16, layers = 2, tokens = 30;

// What a format makes of a row at a scale.
template <class F>
std::vector<double> kept(const F& f, std::span<const float> row, const float* scale) {
  std::vector<float> x(row.begin(), row.end());
  std::vector<unsigned char> codes(std::size_t(f.code_bytes())), params(std::size_t(f.param_bytes()) + 1);
  row_ref r{codes.data(), params.data(), 0};
  if constexpr (has_static_scale<F>) r.params = scale_of_tensor(scale).base;
  rotation_of<F>::forward(x.data(), f.dim());
  f.encode(x.data(), r);
  decode_row(f, r, x.data());
  std::vector<double> in_text(x.begin(), x.end());
  if constexpr (!std::is_same_v<rotation_of<F>, no_rotation>) walsh(in_text);
  return in_text;
}

// K and V of one layer, a step that holds them all, and what attention over them should say.
struct layer_of_text {
  tensor<float> k, v, q;
  planned_step s{host(), {0}, {tokens}, {}, k_dim, v_dim};

  explicit layer_of_text(std::uint64_t seed)
      : k(random_tensor(seed, tokens, heads, k_dim)),
        v(random_tensor(seed + 1, tokens, heads, v_dim)),
        q(random_tensor(seed + 2, tokens, heads * group, k_dim)) {}

  template <class View>
  answer<> through(const View& view) const {
    append(host(), view, s, k.rows(), v.rows());
    answer<> a(tokens, heads * group, v_dim);
    attention{causal{}}(host(), view, s, q.rows(), a.out.rows(), a.lse_rows());
    return a;
  }
  template <class K, class V>
  std::string difference_to_oracle(const answer<>& a, const K& kf, const V& vf, const float* ks, int ks_stride,
                                   const float* vs, int vs_stride) const {
    for (int head = 0; head < heads * group; ++head) {
      const int kv = head / group;
      std::vector<std::vector<double>> rows;
      for (idx t = 0; t < tokens; ++t) {
        rows.push_back(kept(kf, k.row(t, kv), ks + kv * ks_stride));
        rows.push_back(kept(vf, v.row(t, kv), vs + kv * vs_stride));
      }
      std::vector<oracle_key> keys;
      for (std::size_t t = 0; t < tokens; ++t) keys.push_back({rows[2 * t], rows[2 * t + 1], idx(t)});
      for (idx i = 0; i < tokens; ++i) {
        const oracle_state want =
            oracle(widened(q.row(i, head)), keys, 1 / std::sqrt(double(k_dim)), v_dim, band(i, 1000));
        const std::string wrong =
            difference(a.out.row(i, head), want.out, within(host(), integer_codes<K>() || integer_codes<V>()));
        if (!wrong.empty()) return "query " + std::to_string(i) + ", head " + std::to_string(head) + ": " + wrong;
      }
    }
    return {};
  }
};

constexpr float k_scales[layers][heads] = {{0.04f, 0.011f, 0.3f}, {0.02f, 0.5f, 0.07f}};
constexpr float v_scales[layers][heads] = {{0.05f, 0.02f, 0.4f}, {0.01f, 0.06f, 0.09f}};

template <class Policy>
void owner_holds(const Policy& p) {
  using k_format = typename Policy::k_format;
  using v_format = typename Policy::v_format;
  test_memory poisoned(0xff);
  cache<Policy> owner({.layers = layers, .kv_heads = heads, .tokens = 64, .max_step = tokens},
                      memory<memory_space::host>::from(poisoned), p);
  const auto given = [](bool is_static, const float(&scales)[heads], int count) {
    return std::span<const float>(scales, is_static ? std::size_t(count) : 0);
  };
  for (const int count : {1, heads}) {
    for (int layer = 0; layer < layers; ++layer)
      owner.set_scales(layer, given(has_static_scale<k_format>, k_scales[layer], count),
                       given(has_static_scale<v_format>, v_scales[layer], count));
    const sequence name = owner.open();
    owner.reserve(name, tokens);
    std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1), 0xff);
    const int all = tokens;
    layer_of_text texts[layers] = {layer_of_text(1), layer_of_text(5)};
    const step s = owner.begin(host(), {&name, 1}, {&all, 1}, workspace);
    for (int layer = 0; layer < layers; ++layer) {
      const layer_of_text& t = texts[layer];
      append(host(), owner.view(layer), s, t.k.rows(), t.v.rows());
      const int stride = count == 1 ? 0 : 1;
      for (const instruction_set set : instruction_sets()) {
        INFO(name_of(set));
        answer<> a(tokens, heads * group, v_dim);
        attention{causal{}}(host().with(set), owner.view(layer), s, t.q.rows(), a.out.rows(), a.lse_rows());
        CHECK(t.difference_to_oracle(a, p.k, p.v, k_scales[layer], stride, v_scales[layer], stride) == "");
      }
    }
    owner.commit(s);
    owner.close(name);
  }
}

template <class K, class V = K>
using paged_policy = policy<paged<4>, K, V>;

}  // namespace

TEST_CASE("scales: an owner reads each layer's own, of the tensor or of each head", "[cache]") {
  owner_holds(paged_policy<e4m3_static<>>(e4m3_static<>(k_dim), e4m3_static<>(v_dim)));
  owner_holds(paged_policy<e5m2_static<>, e4m3_static<>>(e5m2_static<>(k_dim), e4m3_static<>(v_dim)));
  owner_holds(policy<contiguous, q8_static<k_dim>, fp16<v_dim>>());
  owner_holds(paged_policy<q8<>, q8_static<>>(q8<>(k_dim), q8_static<>(v_dim)));
  owner_holds(policy<paged<16>, rotated<q8_static<>>, rotated<q8_static<>>, window<tokens, 3>>(
      rotated<q8_static<>>(k_dim), rotated<q8_static<>>(v_dim)));
}

TEST_CASE("scales: static ones take no bytes of a cache", "[cache]") {
  const cache_shape shape{.layers = 2, .kv_heads = 4, .tokens = 512};
  const budget b = plan_bytes(policy<paged<16>, e4m3_static<128>>(), shape);
  CHECK(b.kv_bytes == 2 * 512 * 4 * 2 * 128);
  CHECK(b.bytes_per_token == 2 * 4 * 2 * 128);
  CHECK(plan_bytes(policy<paged<16>, q8_static<128>, q8<128>>(), shape).bytes_per_token == 2 * 4 * (128 + 130));
}

TEST_CASE("scales: an owner refuses what is none, and changes nothing", "[cache]") {
  using kv = policy<contiguous, e4m3_static<16>, fp16<16>>;
  cache<kv> owner({.layers = 2, .kv_heads = 2, .tokens = 8}, host_memory());
  const std::vector<float> good = {0.5f, 0.25f};
  owner.set_scales(0, good, {});
  const auto plane_of = [&] { return owner.view(0).first().planes.k_params.base; };
  unsigned char* const before = plane_of();
  const auto refuses = [&](int layer, std::vector<float> k, std::vector<float> v, const std::string& text) {
    CHECK_THROWS_AS(owner.set_scales(layer, k, v), invalid_argument);
    CHECK_THROWS_WITH(owner.set_scales(layer, k, v), containing(text));
    CHECK(plane_of() == before);
  };
  for (const float wrong : {0.0f, -0.0f, -1.0f, NAN, -NAN, INFINITY, -INFINITY, 1e-40f, 1e34f}) {
    refuses(0, {wrong}, {}, "K's static scale of head 0 is ");
    refuses(0, {1.0f, wrong}, {}, "K's static scale of head 1 is ");
  }
  refuses(0, {}, {}, "K is given 0 static scales; 1 or one for each of 2 KV heads is needed");
  refuses(0, {1, 1, 1}, {}, "K is given 3 static scales");
  refuses(0, {1}, {1}, "V is given 1 static scales; its format writes its own");
  refuses(2, {1}, {}, "layer 2; the cache has layers 0 to 1");
  refuses(-1, {1}, {}, "layer -1");
  CHECK_THROWS_WITH(owner.set_scales(0, std::span<const float>(static_cast<const float*>(nullptr), 1), {}),
                    containing("K's static scale is null"));
}

TEST_CASE("scales: a layer that was given none is refused by both verbs", "[cache]") {
  using kv = policy<contiguous, q8_static<16>>;
  cache<kv> owner({.layers = 2, .kv_heads = 2, .tokens = 8}, host_memory());
  const float one = 1;
  owner.set_scales(1, {&one, 1}, {&one, 1});
  const planned_step s(host(), {0}, {1}, {}, 16, 16);
  const tensor<float> rows = random_tensor(1, 1, 2, 16);
  answer<> a(1, 2, 16);
  const std::string text = "K's static scale is null; there is no default";
  CHECK_THROWS_WITH(append(host(), owner.view(0), s, rows.rows(), rows.rows()), containing(text));
  CHECK_THROWS_WITH(attention{causal{}}(host(), owner.view(0), s, rows.rows(), a.out.rows()), containing(text));
  CHECK_NOTHROW(append(host(), owner.view(1), s, rows.rows(), rows.rows()));
}

TEST_CASE("scales: a view by hand reads them where they lie", "[cache]") {
  const e4m3_static<> k(k_dim);
  const q8_static<> v(v_dim);
  const layer_of_text text(9);
  for (const arrangement arranged : {arrangement::four_pools, arrangement::interleaved})
    for (const bool per_head : {false, true}) {
      foreign_pool<e4m3_static<>, q8_static<>> pool(k, v, heads, 4, 8, arranged);
      geometry g = pool.planes(1);
      g.k_params = per_head ? scales_of_heads(k_scales[0]) : scale_of_tensor(k_scales[0]);
      g.v_params = per_head ? scales_of_heads(v_scales[0]) : scale_of_tensor(v_scales[0]);
      const std::vector<page_id> table = foreign_table(1, 8, {8}, page_order::down);
      using body = segment<paged<4>, interval<part::body, keep_all>, e4m3_static<>, q8_static<>>;
      const auto view = make_view<memory_space::host>(heads, body{{table.data(), 8}, {}, k, v, g});
      const int stride = per_head ? 1 : 0;
      CHECK(text.difference_to_oracle(text.through(view), k, v, k_scales[0], stride, v_scales[0], stride) == "");
    }
}

TEST_CASE("scales: a view by hand with wrong ones is refused by both verbs, and nothing is written", "[cache]") {
  const q8_static<> f(16);
  std::vector<unsigned char> codes(2 * 8 * 2 * 16, 0x7f);
  const std::vector<unsigned char> before = codes;
  const float good[2] = {1, 2};
  const tensor<float> rows = random_tensor(1, 3, 2, 16);
  const planned_step s(host(), {0}, {3}, {}, 16, 16);
  const auto refuses = [&](const plane& k, const plane& v, const std::string& text) {
    using body = segment<contiguous, interval<part::body, keep_all>, q8_static<>>;
    const auto view = make_view<memory_space::host>(
        2, body{{8}, {}, f, f, {{codes.data(), 256, 128, 16}, k, {codes.data() + 256, 256, 128, 16}, v, 1}});
    answer<> a(3, 2, 16);
    CHECK_THROWS_WITH(append(host(), view, s, rows.rows(), rows.rows()), containing(text));
    CHECK_THROWS_WITH(attention{causal{}}(host(), view, s, rows.rows(), a.out.rows()), containing(text));
    CHECK(codes == before);
  };
  const plane fine = scales_of_heads(good);
  for (const float wrong : {0.0f, -0.0f, -1.0f, NAN, INFINITY, 1e-40f}) {
    const float first[2] = {wrong, 1}, second[2] = {1, wrong};
    refuses(scale_of_tensor(first), fine, "K's static scale of head 0 is ");
    refuses(fine, scales_of_heads(second), "V's static scale of head 1 is ");
  }
  refuses({}, fine, "K's static scale is null");
  refuses(fine, {}, "V's static scale is null");
  plane paged = fine;
  paged.page_stride = 8;
  refuses(paged, fine, "K's static scales have a page stride of 8 and a record stride of 0");
  paged = fine;
  paged.record_stride = 4;
  refuses(fine, paged, "V's static scales have a page stride of 0 and a record stride of 4");
}
