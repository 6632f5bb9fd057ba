#include "support/catch.hpp"
#include "support/session.hpp"
#include "support/tensors.hpp"

#include <kvilt/cache/append.hpp>

namespace {

using namespace kvilt;
using namespace support;

// A cache of 32-bit rows that can be read back.
class readable {
 public:
  readable(int heads, int k_dim, int v_dim)
      : owner_({.layers = 1, .kv_heads = heads, .tokens = 64}, host_memory(), kv(fp32<>(k_dim), fp32<>(v_dim))) {}

  auto view() const { return owner_.view(0); }
  std::vector<float> k(idx position, int head) const {
    std::vector<float> row(std::size_t(view().k_dim()));
    decode_row(view().first().k, view().first().k_row({0, int(position), 1}, head), row.data());
    return row;
  }
  std::vector<float> v(idx position, int head) const {
    std::vector<float> row(std::size_t(view().v_dim()));
    decode_row(view().first().v, view().first().v_row({0, int(position), 1}, head), row.data());
    return row;
  }

 private:
  using kv = policy<contiguous, fp32<>>;
  cache<kv> owner_;
};

std::vector<float> as_floats(std::span<const float> row) {
  return {row.begin(), row.end()};
}

}  // namespace

TEST_CASE("append: a fused QKV buffer is taken as it lies", "[cache]") {
  // [token][q heads | k heads | v heads], 4 + 2 + 2 heads.
  const int dim = 16, row = 8 * dim;
  const tensor<float> fused = random_tensor(1, 10, 8, dim);
  readable c(2, dim, dim);
  const planned_step s(host(), {0}, {10}, {}, dim, dim);
  const std::vector<float> before = fused.data;
  append(host(), c.view(), s, rows<const float>{fused.data.data() + 4 * dim, row, dim, 2, dim},
         rows<const float>{fused.data.data() + 6 * dim, row, dim, 2, dim});
  CHECK(fused.data == before);
  for (int t = 0; t < 10; ++t)
    for (int head = 0; head < 2; ++head) {
      CHECK(c.k(t, head) == as_floats(fused.row(t, 4 + head)));
      CHECK(c.v(t, head) == as_floats(fused.row(t, 6 + head)));
    }
}

TEST_CASE("append: 16-bit tensors are widened exactly", "[cache]") {
  tensor<float16> k(5, 1, 8);
  tensor<bfloat16> v(5, 1, 8);
  const tensor<float> from = random_tensor(1, 5, 1, 8);
  for (std::size_t i = 0; i < from.data.size(); ++i)
    k.data[i].bits = to_fp16(from.data[i]), v.data[i].bits = to_bf16(from.data[i]);
  readable c(1, 8, 8);
  append(host(), c.view(), planned_step(host(), {0}, {5}, {}, 8, 8), k.rows(), v.rows());
  for (int t = 0; t < 5; ++t)
    for (std::size_t d = 0; d < 8; ++d) {
      CHECK(c.k(t, 0)[d] == from_fp16(k.row(t, 0)[d].bits));
      CHECK(c.v(t, 0)[d] == from_bf16(v.row(t, 0)[d].bits));
    }
}

TEST_CASE("append: RoPE turns keys and queries by their positions, and leaves values alone", "[cache]") {
  for (const bool interleaved : {false, true})
    for (const bool given : {false, true}) {
      const rope_table table(16, 500.0, interleaved ? rope_pairs::interleaved : rope_pairs::half_split);
      const tensor<float> k = random_tensor(1, 7, 2, 24), v = random_tensor(2, 7, 2, 24),
                          q = random_tensor(3, 7, 4, 24);
      tensor<float> turned_q = q;
      readable c(2, 24, 24);
      const std::vector<idx> positions = given ? std::vector<idx>{9, 8, 7, 20, 3, 100000, 0} : std::vector<idx>{};
      const planned_step s(host(), {30}, {7}, {}, 24, 24, positions);
      append(host(), c.view(), s, turned_q.rows(), k.rows(), v.rows(), table);
      for (int t = 0; t < 7; ++t) {
        const idx position = given ? positions[std::size_t(t)] : 30 + t;
        for (int head = 0; head < 4; ++head) {
          std::vector<double> want = widened(q.row(t, head));
          support::turn(want, position, 16, 500.0, interleaved);
          CHECK(difference(turned_q.row(t, head), want) == "");
          if (head >= 2) continue;
          want = widened(k.row(t, head));
          support::turn(want, position, 16, 500.0, interleaved);
          CHECK(difference(c.k(30 + t, head), want) == "");
          CHECK(c.v(30 + t, head) == as_floats(v.row(t, head)));
        }
      }
    }
}

TEST_CASE("append: RoPE turns the part of a row that it is told to", "[cache]") {
  const rope_table table(16, 500.0, rope_pairs::interleaved);
  rope last = table;
  last.first = 24;
  const tensor<float> k = random_tensor(1, 7, 2, 40), v = random_tensor(2, 7, 2, 24), q = random_tensor(3, 7, 4, 40);
  tensor<float> turned_q = q;
  readable c(2, 40, 24);
  append(host(), c.view(), planned_step(host(), {30}, {7}, {}, 40, 24), turned_q.rows(), k.rows(), v.rows(), last);
  for (int t = 0; t < 7; ++t)
    for (int head = 0; head < 4; ++head) {
      std::vector<double> want = widened(q.row(t, head));
      support::turn(std::span(want).last(16), 30 + t, 16, 500.0, true);
      CHECK(difference(turned_q.row(t, head), want) == "");
      CHECK(std::equal(q.row(t, head).begin(), q.row(t, head).begin() + 24, turned_q.row(t, head).begin()));
      if (head >= 2) continue;
      want = widened(k.row(t, head));
      support::turn(std::span(want).last(16), 30 + t, 16, 500.0, true);
      CHECK(difference(c.k(30 + t, head), want) == "");
    }
}

TEST_CASE("append: a row that leaves the tail is the 16-bit row encoded at once", "[cache]") {
  constexpr int tokens = 30, dim = 32;
  using with_tail = policy<contiguous, q4<>, q8<>, keep_all, 0, 7>;
  using without = policy<contiguous, q4<>, q8<>>;
  const cache_shape shape = {.layers = 1, .kv_heads = 1, .tokens = tokens, .max_step = 4};
  cache<with_tail> a(shape, host_memory(), with_tail(dim));
  cache<without> b(shape, host_memory(), without(dim));
  tensor<float> k = random_tensor(1, tokens, 1, dim), v = random_tensor(2, tokens, 1, dim);
  const sequence s = a.open();
  a.reserve(s, tokens);
  std::vector<unsigned char> workspace(a.workspace_bytes(host(), 1));
  in_chunks(tokens, 4, [&](idx first, int count) {
    const step st = a.begin(host(), {&s, 1}, {&count, 1}, workspace);
    append(host(), a.view(0), st, rows<float>{k.rows().at(first, 0), dim, dim, 1, dim},
           rows<float>{v.rows().at(first, 0), dim, dim, 1, dim});
    a.commit(st);
  });
  for (tensor<float>* t : {&k, &v})
    for (float& x : t->data) x = from_fp16(to_fp16(x));
  append(host(), b.view(0), planned_step(host(), {0}, {tokens}, {}, dim, dim), k.rows(), v.rows());
  const auto flushed = a.view(0).first(), at_once = b.view(0).first();
  for (int t = 0; t < tokens - 1 - 7; ++t) {
    const place p{0, t, 1};
    INFO("token " << t);
    CHECK(std::memcmp(flushed.k_row(p, 0).codes, at_once.k_row(p, 0).codes, dim / 2) == 0);
    CHECK(std::memcmp(flushed.k_row(p, 0).params, at_once.k_row(p, 0).params, 4) == 0);
    CHECK(std::memcmp(flushed.v_row(p, 0).codes, at_once.v_row(p, 0).codes, dim) == 0);
    CHECK(std::memcmp(flushed.v_row(p, 0).params, at_once.v_row(p, 0).params, 2) == 0);
  }
}

TEST_CASE("append: what does not fit is refused, and nothing is written", "[cache]") {
  readable c(2, 16, 8);
  tensor<float> k = random_tensor(1, 3, 2, 16), v = random_tensor(2, 3, 2, 8), q = random_tensor(3, 3, 4, 16);
  const planned_step s(host(), {0}, {3}, {}, 16, 8);
  append(host(), c.view(), s, k.rows(), v.rows());
  const std::vector<float> kept = c.k(0, 0), queries = q.data;
  k.data.assign(k.data.size(), 1.0f);
  const rope_table good(16, 10.0, rope_pairs::half_split), wide(18, 10.0, rope_pairs::half_split);
  rows<float> three = k.rows(), null = v.rows(), no_queries = q.rows();
  three.heads = 3, null.data = nullptr, no_queries.data = nullptr;
  step cramped = s;
  cramped.scratch_bytes = 100;
  const auto run = [&](rows<float> keys, rows<float> values, const step& of, const rope_table& turn,
                       rows<float> asking) { append(host(), c.view(), of, asking, keys, values, turn); };
  CHECK_THROWS_WITH(run(three, v.rows(), s, good, q.rows()), containing("K has 3 and V 2 heads; the cache has 2"));
  CHECK_THROWS_WITH(run(k.rows(), null, s, good, q.rows()), containing("K or V of 3 rows is null"));
  CHECK_THROWS_WITH(run(k.rows(), v.rows(), s, good, no_queries), containing("Q of 3 rows is null"));
  CHECK_THROWS_WITH(run(k.rows(), v.rows(), s, wide, q.rows()), containing("RoPE over 18 numbers of rows of 16"));
  rows<float> long_k = k.rows(), long_v = v.rows(), short_q = q.rows();
  long_k.dim = 24, long_v.dim = 16, short_q.dim = 8;
  CHECK_THROWS_WITH(run(long_k, v.rows(), s, good, q.rows()),
                    containing("rows of K have 24 and of V 8 numbers; the cache's have 16 and 8"));
  CHECK_THROWS_WITH(run(k.rows(), long_v, s, good, q.rows()),
                    containing("rows of K have 16 and of V 16 numbers; the cache's have 16 and 8"));
  const std::string short_rows = "rows of Q have 8 numbers; the cache's keys have 16";
  CHECK_THROWS_WITH(run(k.rows(), v.rows(), s, good, short_q), containing(short_rows));
  CHECK_THROWS_WITH(rotate_queries(host(), s, short_q, 16, good), containing(short_rows));
  const rope no_table = {nullptr, 16, rope_pairs::half_split, 1.0f}, odd = {rope(good).turns, 15};
  CHECK_THROWS_WITH(append(host(), c.view(), s, k.rows(), v.rows(), no_table),
                    containing("RoPE over 16 numbers has no frequencies"));
  CHECK_THROWS_WITH(rotate_queries(host(), s, q.rows(), 16, no_table),
                    containing("RoPE over 16 numbers has no frequencies"));
  CHECK_THROWS_WITH(append(host(), c.view(), s, k.rows(), v.rows(), odd), containing("RoPE over 15 numbers"));
  for (const int first : {-1, 1}) {
    rope beyond = good;
    beyond.first = first;
    CHECK_THROWS_WITH(append(host(), c.view(), s, k.rows(), v.rows(), beyond),
                      containing("RoPE over 16 numbers from number " + std::to_string(first) + " on of rows of 16"));
  }
  for (const float magnitude : {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    rope loud = good;
    loud.magnitude = magnitude;
    CHECK_THROWS_WITH(append(host(), c.view(), s, k.rows(), v.rows(), loud),
                      containing("RoPE multiplies what it turns by "));
  }
  CHECK_THROWS_WITH(run(k.rows(), v.rows(), cramped, good, q.rows()),
                    containing("the step's workspace leaves 100 bytes"));
  CHECK_THROWS_WITH(rotate_queries(host(), cramped, q.rows(), 16, good),
                    containing("the step's workspace leaves 100 bytes"));
  CHECK(c.k(0, 0) == kept);
  CHECK(q.data == queries);
}
