#include "support/catch.hpp"
#include "support/foreign.hpp"
#include "support/memory.hpp"
#include "support/subject.hpp"

// Multi-head latent attention's cache: one KV head whose values are the first numbers of its keys.

namespace {

using namespace kvilt;
using namespace support;

using latent_8 = concat<e4m3<512, 128>, bf16<64>>;
constexpr float scale = 0.0721687836f;  // 1 / sqrt(192): of the heads that the latent stands for

// The last numbers of a row, turned by RoPE.
constexpr double base = 1e4;
std::vector<double> turned(std::span<const float> row, int numbers, idx position) {
  std::vector<double> x(row.begin(), row.end());
  turn(std::span(x).last(std::size_t(numbers)), position, numbers, base, true);
  return x;
}

// What the step's lengths say that a token's record holds. Its values are the first of these numbers.
template <class Policy>
std::vector<double> kept(const Policy& p, const lengths& n, std::span<const double> row, idx position) {
  std::vector<float> x(row.begin(), row.end());
  const bool sink = position < Policy::sinks, in_body = !sink && position < n.body_after;
  if (sink ? Policy::exact_sinks > 0 : Policy::tail > 0) support::detail::round_trip(p.k_exact(), x);
  if (sink ? Policy::exact_sinks == 0 : in_body) support::detail::round_trip(p.k, x);
  return {x.begin(), x.end()};
}

// `turning` numbers at the end of each key turn.
template <class Policy>
void run(const Policy& p, int q_heads, idx tokens, int turning = 0) {
  test_memory poisoned(0xff);
  const int k_dim = p.k.dim(), v_dim = p.v.dim(), max_step = 7;
  cache<Policy> owner({.layers = 1, .kv_heads = 1, .tokens = tokens + 16, .max_step = max_step},
                      memory<memory_space::host>::from(poisoned), p);
  const tensor<float> k = random_tensor(1, tokens, 1, k_dim), q = random_tensor(2, tokens, q_heads, k_dim);
  const rope_table table(turning, base, rope_pairs::interleaved);
  rope turn = table;
  turn.first = k_dim - turning;
  const sequence name = owner.open();
  owner.reserve(name, tokens);
  std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1), 0xff);
  in_chunks(tokens, max_step, [&](idx first, int count) {
    const step s = owner.begin(host(), {&name, 1}, {&count, 1}, workspace);
    append(host(), owner.view(0), s, rows<const float>{k.rows().at(first, 0), k_dim, k_dim, 1, k_dim}, turn);
    tensor<float> step_q(count, q_heads, k_dim);
    std::copy_n(q.rows().at(first, 0), step_q.data.size(), step_q.data.begin());
    rotate_queries(host(), s, step_q.rows(), k_dim, turn);
    answer<> a(count, q_heads, v_dim);
    attention{causal{}, scale}(host(), owner.view(0), s, step_q.rows(), a.out.rows(), a.lse_rows());
    if (first % 21 == 0 || first + count == tokens) {
      std::vector<std::vector<double>> records;
      std::vector<oracle_key> keys;
      for (idx t = 0; t < first + count; ++t)
        records.push_back(kept(p, s.items[0].n, turned(k.row(t, 0), turning, t), t));
      for (idx t = 0; t < first + count; ++t) {
        const std::span<const double> record = records[std::size_t(t)];
        keys.push_back({record, record.first(std::size_t(v_dim)), t});
      }
      const idx width = p.retention.width() ? p.retention.width() : 1 << 30;
      for (int head = 0; head < q_heads; ++head) {
        const oracle_state want = oracle(turned(q.row(first, head), turning, first), keys, scale, std::size_t(v_dim),
                                         band(first, width, Policy::sinks));
        const float lse = a.lse_of(0, head);
        INFO("query " << first << ", head " << head);
        const tolerance close = within(host(), owner.view(0));
        REQUIRE(difference(a.out.row(0, head), want.out, close) == "");
        REQUIRE(difference(std::span(&lse, 1), std::vector<double>{want.lse}, close) == "");
      }
    }
    owner.commit(s);
  });
  CHECK(poisoned.balanced());
}

}  // namespace

TEST_CASE("attend: the latent of DeepSeek's shape, 16 and 128 query heads over one record", "[attention]") {
  for (const int q_heads : {16, 128}) {
    run(policy<paged<64>, latent_8, prefix<latent_8, 512>>(), q_heads, 90);
    run(policy<contiguous, bf16<576>, prefix<bf16<576>, 512>>(), q_heads, 30);
  }
}

TEST_CASE("attend: RoPE turns the numbers of a shared record that are not V", "[attention]") {
  // NOTE: in 32 bit, so that a turn in fp32 and one in fp64 do not end up as different codes.
  using latent = concat<e4m3<512, 128>, fp32<64>>;
  run(policy<paged<64>, latent, prefix<latent, 512>>(), 3, 90, 64);
  run(policy<contiguous, fp32<48>, prefix<fp32<48>, 40>>(), 2, 40, 6);
}

TEST_CASE("attend: a shared record in every layout and under every retention", "[attention]") {
  using small = concat<q8<>, fp16<>>;
  const small k(q8<>(40), fp16<>(8));
  const prefix<small, 40> v(k);
  run(policy<paged<1>, small, prefix<small, 40>>(k, v), 5, 40);
  run(policy<paged<3>, small, prefix<small, 40>, window<dynamic, 2>>(k, v, window<dynamic, 2>(11)), 3, 60);
  run(policy<paged<16>, small, prefix<small, 40>, keep_all, 4, 16>(k, v), 2, 60);
  run(policy<contiguous, q4<64>, prefix<q4<64>, 48>, keep_all, 3, 5>(), 4, 50);
  run(ring<q8<96, 32>, prefix<q8<96, 32>, 64>, 13, 3>(), 2, 60);
  run(policy<contiguous, fp32<>, prefix<fp32<>, 24>, keep_all, 0, 9>(fp32<>(24), prefix<fp32<>, 24>(fp32<>(24))), 1,
      40);
}

TEST_CASE("attend: a shared record is stored once", "[attention]") {
  const cache_shape shape{.layers = 2, .kv_heads = 1, .tokens = 640};
  const budget b = plan_bytes(policy<paged<64>, latent_8, prefix<latent_8, 512>>(), shape);
  CHECK(b.bytes_per_token == 2 * (512 + 128 + 8));
  CHECK(b.body_page_bytes == 64 * (512 + 128 + 8));
  CHECK(b.kv_bytes == 2 * 10 * b.body_page_bytes);
  const budget tail = plan_bytes(policy<paged<64>, q8<576>, prefix<q8<576>, 512>, keep_all, 0, 64>(), shape);
  CHECK(tail.exact_sequence_bytes == 2 * (64 + 1) * 576 * 2);
  for (const int page_rows : {1, 4, 64}) {
    const kvilt::detail::storage s = kvilt::detail::make_storage(latent_8(), prefix<latent_8, 512>(), 3, 2, page_rows);
    const geometry g = s.at(nullptr);
    CHECK(g.v_codes == g.k_codes);
    CHECK(g.v_params == g.k_params);
  }
}

TEST_CASE("attend: what would spoil a shared record is refused, and nothing is written", "[attention]") {
  using k_format = fp32<>;
  using body = segment<contiguous, interval<part::body, keep_all>, k_format, prefix<k_format, 16>>;
  std::vector<unsigned char> memory(8 * 24 * 4, 0x7f);
  const std::vector<unsigned char> before = memory;
  const plane codes{memory.data(), 8 * 24 * 4, 8 * 24 * 4, 24 * 4};
  const auto of = [&](int k_dim, int shared_dim, plane v_codes) {
    return make_view<memory_space::host>(1, body{{8},
                                                 interval<part::body, keep_all>(),
                                                 k_format(k_dim),
                                                 prefix<k_format, 16>(k_format(shared_dim)),
                                                 {codes, {}, v_codes, {}, 1}});
  };
  const tensor<float> k = random_tensor(1, 2, 1, 24);
  const planned_step s(host(), {0}, {2}, {}, 24, 16);
  const rope_table turn(8, 100, rope_pairs::interleaved);
  plane other = codes;
  other.base += 4;
  CHECK_THROWS_WITH(append(host(), of(24, 24, other), s, k.rows()),
                    containing("V lies in K's records; its planes must be K's"));
  CHECK_THROWS_WITH(append(host(), of(24, 16, codes), s, k.rows()),
                    containing("V is the first 16 of 16 numbers in 64 bytes; K's rows have 24 in 96"));
  CHECK_THROWS_WITH(append(host(), of(24, 24, codes), s, k.rows(), rows<const float>{}, turn),
                    containing("RoPE over 8 numbers from number 0 on would turn V, which is the first 16 of K's"));
  rope tail = turn;
  tail.first = 15;
  CHECK_THROWS_WITH(append(host(), of(24, 24, codes), s, k.rows(), tail), containing("from number 15 on would turn V"));
  const rows<const float> nothing{nullptr, 24, 24, 1, 24}, narrow{k.data.data(), 24, 24, 1, 16};
  CHECK_THROWS_WITH(append(host(), of(24, 24, codes), s, nothing), containing("K of 2 rows is null"));
  CHECK_THROWS_WITH(append(host(), of(24, 24, codes), s, narrow),
                    containing("K has 1 heads of 16 numbers; the cache has 1 of 24"));
  CHECK(memory == before);
  append(host(), of(24, 24, codes), s, k.rows());
  CHECK(memory != before);
}

TEST_CASE("attend: both parts of a concatenated row have whole groups", "[attention]") {
  using k_format = concat<q8<dynamic, 32>, fp16<>>;
  using kv = policy<contiguous, k_format, fp16<>>;
  CHECK_THROWS_WITH(
      plan_bytes(kv(k_format(q8<dynamic, 32>(40), fp16<>(8)), fp16<>(16)), {.layers = 1, .kv_heads = 1, .tokens = 4}),
      containing("K rows have 40 numbers; whole groups of 32 are needed"));
}

namespace {

// 32-bit rows that count the numbers that are decoded.
struct counted {
  static constexpr int rows = 1;
  static inline idx numbers = 0;

  static constexpr int dim() { return 24; }
  static constexpr int code_bytes() { return 4 * dim(); }
  static constexpr int param_bytes() { return 0; }
  static void encode(const float* x, row_ref r) { std::memcpy(r.codes, x, std::size_t(code_bytes())); }
  template <int N>
  void decode(row_ref r, int first, float (&out)[N]) const {
    numbers += N;
    std::memcpy(out, r.codes + 4 * first, sizeof(out));
  }
};

}  // namespace

TEST_CASE("attend: keys of which V is a part are decoded once", "[attention]") {
  using kv = policy<contiguous, counted, prefix<counted, 16>>;
  constexpr int tokens = 150;
  cache<kv> owner({.layers = 1, .kv_heads = 1, .tokens = tokens}, host_memory());
  const tensor<float> k = random_tensor(1, tokens, 1, 24), q = random_tensor(2, tokens, 1, 24);
  const planned_step s(host(), {0}, {tokens}, {1}, 24, 16);
  append(host(), owner.view(0), s, k.rows());
  answer<> a(1, 1, 16);
  counted::numbers = 0;
  attention{causal{}}(host(), owner.view(0), s, q.rows(), a.out.rows());
  CHECK(counted::numbers == tokens * 24);
  std::vector<std::vector<double>> kept;
  std::vector<oracle_key> keys;
  for (int t = 0; t < tokens; ++t) kept.push_back(widened(k.row(t, 0)));
  for (int t = 0; t < tokens; ++t)
    keys.push_back({kept[std::size_t(t)], std::span(kept[std::size_t(t)]).first(16), idx(t)});
  const oracle_state want = oracle(widened(q.row(0, 0)), keys, 1 / std::sqrt(24.0), 16, band(tokens - 1, 1 << 20));
  CHECK(difference(a.out.row(0, 0), want.out) == "");
}
