#include "support/catch.hpp"
#include "support/tensors.hpp"

#include <kvilt/core/thread_pool.hpp>
#include <kvilt/kvilt.hpp>

namespace {

using namespace kvilt;
using namespace support;

constexpr float minus_inf = -std::numeric_limits<float>::infinity();

// A user's own variant: ALiBi-like slopes by head, and a soft cap.
struct sloped {
  float slope = 0.1f;
  float score(where w, float s) const { return s + slope * float(w.q_head + 1) * float(w.k_position - w.q_position); }
};
struct capped {
  float cap = 1.5f;
  float score(where, float s) const { return cap * std::tanh(s / cap); }
};

struct sloped_and_capped : band {
  int head;
  sloped_and_capped(idx q, idx w, int h) : band(q, w), head(h) {}
  double score(const oracle_key& key, double s) const {
    return 1.5 * std::tanh((s + double(0.1f) * (head + 1) * double(key.position - query)) / 1.5);
  }
};

}  // namespace

TEST_CASE("attend: the scale is one over the root of K's dim unless it is given", "[attention]") {
  const text t(20, 2, 40, 24);
  const tensor<float> q = random_tensor(9, 20, 6, 40);
  const planned_step s(host(), {20}, {0}, {20}, 40, 24);
  const auto meant = [](int, idx position, int) { return band(position, 1000); };
  CHECK(wrong_answers(t, s->items[0], q, t.attend(attention{causal{}}, s, q), 1 / std::sqrt(40.0), meant) == "");
  CHECK(wrong_answers(t, s->items[0], q, t.attend(attention<causal>({}, 0.4f), s, q), double(0.4f), meant) == "");
  CHECK(wrong_answers(t, s->items[0], q, t.attend(attention<causal>({}, -0.2f), s, q), double(-0.2f), meant) == "");
}

TEST_CASE("attend: without a mask every query sees every key", "[attention]") {
  for (const int keys : {1, 63, 64, 65, 130}) {
    const text t(keys, 2, 16, 40);
    const tensor<float> q = random_tensor(9, 70, 2, 16);
    const planned_step s(host(), {keys}, {0}, {70}, 16, 40);
    CHECK(wrong_answers(t, s->items[0], q, t.attend(attention{full{}}, s, q), 0.25,
                        [](int, idx, int) { return all_keys{}; }) == "");
  }
}

TEST_CASE("attend: queries that see no key give nothing", "[attention]") {
  const text t(5, 1, 16, 8);
  const tensor<float> q = random_tensor(9, 12, 4, 16);
  const planned_step s(host(), {5}, {0}, {12}, 16, 8);  // the first stands at position -7
  const answer<> got = t.attend(attention{causal{}}, s, q);
  CHECK(wrong_answers(t, s->items[0], q, got, 0.25, [](int, idx position, int) { return band(position, 1000); }) == "");
  for (int i = 0; i < 7; ++i)
    for (int head = 0; head < 4; ++head) {
      CHECK(got.lse_of(i, head) == minus_inf);
      for (float x : got.out.row(i, head)) CHECK(x == 0.0f);
    }
  const planned_step empty(host(), {0}, {0}, {3}, 16, 8);
  const answer<> nothing = t.attend(attention{full{}}, empty, q);
  for (float x : nothing.out.data) CHECK(x == 0.0f);
  for (float x : nothing.lse) CHECK(x == minus_inf);
}

TEST_CASE("attend: an empty batch is legal", "[attention]") {
  const text t(5, 1, 16, 8);
  const planned_step s(host(), {}, {}, {}, 16, 8);
  attention{causal{}}(host(), t.view(), s, rows<const float>{nullptr, 0, 0, 1, 16}, rows<float>{nullptr, 0, 0, 1, 8});
  append(host(), t.view(), s, rows<const float>{nullptr, 0, 0, 1, 16}, rows<const float>{nullptr, 0, 0, 1, 8});
}

TEST_CASE("attend: a window as a variant is a window", "[attention]") {
  const text t(100, 1, 16, 8);
  const tensor<float> q = random_tensor(9, 100, 2, 16);
  const planned_step s(host(), {100}, {0}, {100}, 16, 8);
  for (const int width : {1, 2, 31, 64, 65, 99, 100, 101})
    CHECK(wrong_answers(t, s->items[0], q, t.attend(attention{causal_window{width}}, s, q), 0.25,
                        [&](int, idx position, int) { return band(position, width); }) == "");
}

TEST_CASE("attend: a user's scores and masks are composed left to right", "[attention]") {
  const text t(90, 2, 16, 24);
  const tensor<float> q = random_tensor(9, 40, 4, 16);
  const planned_step s(host(), {90}, {0}, {40}, 16, 24);
  const auto variant = compose(causal_window{33}, sloped{}, capped{});
  CHECK(wrong_answers(t, s->items[0], q, t.attend(attention{variant}, s, q), 0.25,
                      [](int, idx position, int head) { return sloped_and_capped(position, 33, head); }) == "");
}

TEST_CASE("attend: the numbers of 16-bit tensors are taken and given", "[attention]") {
  const text t(40, 2, 32, 16);
  tensor<float> q = random_tensor(9, 10, 4, 32);
  tensor<float16> q16(10, 4, 32);
  tensor<bfloat16> qb(10, 4, 32);
  for (std::size_t i = 0; i < q.data.size(); ++i) {
    q.data[i] = from_bf16(to_bf16(q.data[i]));  // what both types can say
    q16.data[i].bits = to_fp16(q.data[i]), qb.data[i].bits = to_bf16(q.data[i]);
  }
  const planned_step s(host(), {40}, {0}, {10}, 32, 16);
  const answer<> wide = t.attend(attention{causal{}}, s, q);
  answer<float16> half(10, 4, 16);
  answer<bfloat16> brain(10, 4, 16);
  attention{causal{}}(host(), t.view(), s, q16.rows(), half.out.rows(), half.lse_rows());
  attention{causal{}}(host(), t.view(), s, qb.rows(), brain.out.rows(), brain.lse_rows());
  CHECK((half.lse == wide.lse && brain.lse == wide.lse));
  for (std::size_t i = 0; i < wide.out.data.size(); ++i) {
    CHECK(half.out.data[i].bits == to_fp16(wide.out.data[i]));
    CHECK(brain.out.data[i].bits == to_bf16(wide.out.data[i]));
  }
}

TEST_CASE("attend: a caller's strides are taken as they lie", "[attention]") {
  const text t(30, 2, 16, 8);
  const tensor<float> q = random_tensor(9, 30, 4, 16);
  const planned_step s(host(), {30}, {0}, {30}, 16, 8);
  const answer<> packed = t.attend(attention{causal{}}, s, q);
  // Heads outside tokens, rows padded; a column more than there are heads in the log-sum-exp.
  std::vector<float> strided(4 * 30 * 20, NAN), out(4 * 30 * 9, 7.0f), lse(30 * 5, 7.0f);
  for (int token = 0; token < 30; ++token)
    for (int head = 0; head < 4; ++head)
      for (int d = 0; d < 16; ++d)
        strided[std::size_t((head * 30 + token) * 20 + d)] = q.row(token, head)[std::size_t(d)];
  attention{causal{}}(host(), t.view(), s, rows<float>{strided.data(), 20, 600, 4, 16},
                      rows<float>{out.data(), 9, 270, 4, 8}, {lse.data(), 5});
  for (int token = 0; token < 30; ++token) {
    for (int head = 0; head < 4; ++head) {
      CHECK(lse[std::size_t(token * 5 + head)] == packed.lse_of(token, head));
      for (int d = 0; d < 9; ++d)
        CHECK(out[std::size_t((head * 30 + token) * 9 + d)] ==
              (d < 8 ? packed.out.row(token, head)[std::size_t(d)] : 7.0f));
    }
    CHECK(lse[std::size_t(token * 5 + 4)] == 7.0f);
  }
}

TEST_CASE("attend: NaN reaches who sees it, and nobody else", "[attention]") {
  text t(70, 1, 16, 8);
  t.k.data[20 * 16 + 3] = t.v.data[20 * 8 + 1] = NAN;
  append(host(), t.view(), planned_step(host(), {0}, {70}, {}, 16, 8), t.k.rows(), t.v.rows());
  const tensor<float> q = random_tensor(9, 70, 2, 16);
  const planned_step s(host(), {70}, {0}, {70}, 16, 8);
  const auto is_right = [&](auto variant, idx width) {
    return wrong_answers(t, s->items[0], q, t.attend(attention{variant}, s, q), 0.25,
                         [&](int, idx position, int) { return band(position, width); });
  };
  CHECK(is_right(causal{}, 1000) == "");
  CHECK(is_right(causal_window{9}, 9) == "");
  CHECK(is_right(causal_window{1}, 1) == "");  // the NaN alone: its log-sum-exp is NaN, not that of no key
}

TEST_CASE("attend: huge scores neither overflow nor vanish", "[attention]") {
  text t(80, 1, 16, 8);
  for (float& x : t.k.data) x *= 300;
  append(host(), t.view(), planned_step(host(), {0}, {80}, {}, 16, 8), t.k.rows(), t.v.rows());
  const tensor<float> q = random_tensor(9, 80, 1, 16);
  const planned_step s(host(), {80}, {0}, {80}, 16, 8);
  const answer<> got = t.attend(attention{causal{}}, s, q);
  for (int i = 0; i < 80; ++i) {
    const oracle_state want = oracle(widened(q.row(i, 0)), t.keys(0), 0.25, 8, band(i, 1000));
    CHECK(difference(got.out.row(i, 0), want.out, {2e-3, 2e-3, 1e-5}) == "");
  }
}

TEST_CASE("attend: what does not fit is refused by name", "[attention]") {
  const text t(5, 2, 16, 8);
  const tensor<float> q = random_tensor(9, 5, 4, 16);
  const planned_step s(host(), {5}, {0}, {5}, 16, 8);
  answer<> a(5, 4, 8);
  const std::vector<float> before = a.lse;
  const auto run = [&](rows<const float> queries, rows<float> out, const step& of) {
    attention{causal{}}(host(), t.view(), of, queries, out, a.lse_rows());
  };
  rows<const float> three = q.rows();
  three.heads = 3;
  CHECK_THROWS_WITH(run(three, a.out.rows(), s), containing("Q has 3 heads; a multiple of the cache's 2 is needed"));
  rows<float> two = a.out.rows();
  two.heads = 2;
  CHECK_THROWS_WITH(run(q.rows(), two, s),
                    containing("the output has 2 heads of 8 numbers; Q has 4 and the cache's values 8"));
  rows<const float> null = q.rows();
  null.data = nullptr;
  CHECK_THROWS_WITH(run(null, a.out.rows(), s), containing("Q of 5 rows is null"));
  rows<float> nowhere = a.out.rows();
  nowhere.data = nullptr;
  CHECK_THROWS_WITH(run(q.rows(), nowhere, s), containing("the output of 5 rows is null"));
  rows<const float> short_rows = q.rows();
  short_rows.dim = 8;
  CHECK_THROWS_WITH(run(short_rows, a.out.rows(), s), containing("rows of Q have 8 numbers; the cache's keys have 16"));
  rows<float> long_rows = a.out.rows();
  long_rows.dim = 16;
  CHECK_THROWS_WITH(run(q.rows(), long_rows, s),
                    containing("the output has 4 heads of 16 numbers; Q has 4 and the cache's values 8"));
  CHECK_THROWS_WITH(attention{causal{}}(host(), t.view(), s, q.rows(), a.out.rows(), natural_lse{a.lse.data(), 3}),
                    containing("rows of log-sum-exps are 3 apart; there are 4 heads"));
  step cramped = s;
  cramped.scratch_bytes = 100;
  CHECK_THROWS_WITH(run(q.rows(), a.out.rows(), cramped), containing("the step's workspace leaves 100 bytes"));
  CHECK(same_bits(a.lse, before));
  for (float x : a.out.data) CHECK(x == 0.0f);
}

TEST_CASE("attend: a variant or a scale that says nothing is refused by name", "[attention]") {
  const text t(5, 2, 16, 8);
  const tensor<float> q = random_tensor(9, 5, 4, 16);
  const planned_step s(host(), {5}, {0}, {5}, 16, 8);
  answer<> a(5, 4, 8);
  const auto refuses = [&](const auto& of, const std::string& what) {
    CHECK_THROWS_AS(of(host(), t.view(), s, q.rows(), a.out.rows(), a.lse_rows()), invalid_argument);
    CHECK_THROWS_WITH(of(host(), t.view(), s, q.rows(), a.out.rows(), a.lse_rows()), containing(what));
  };
  refuses(attention{alibi{}}, "the list of ALiBi's slopes is null");
  refuses(attention{compose(causal{}, alibi{})}, "the list of ALiBi's slopes is null");
  refuses(attention{compose(causal{}, sink_logit{})}, "the list of the sink's logits is null");
  refuses(attention{compose(tree_mask{}, soft_cap{1})}, "the list of a tree's ancestors is null");
  const std::uint64_t tree[5] = {};
  refuses(attention{tree_mask{tree, 0}}, "a tree's tokens have 0 words");
  refuses(attention{tree_mask{tree, 1, -5}}, "sequences are -5 apart");
  for (const idx width : {0, -3})
    refuses(attention{causal_window{width}}, "a window of " + std::to_string(width) + " tokens; at least 1");
  for (const float wrong : {-1.0f, -minus_inf, std::nanf("")}) {
    refuses(attention{compose(causal{}, soft_cap{wrong})}, "scores are capped at ");
    if (wrong != -1) refuses(attention{causal{}, wrong}, "scores are scaled by ");
  }
  for (const float x : a.out.data) REQUIRE(x == 0.0f);
}

TEST_CASE("attend: over a window no query may be older than the step's tokens", "[attention]") {
  using kv = ring<fp32<>, fp32<>>;
  cache<kv> owner({.layers = 1, .kv_heads = 1, .tokens = 20, .max_step = 4}, host_memory(), kv(16, window<>(6)));
  const planned_step s(host(), {9}, {0}, {1}, 16, 16);
  const tensor<float> q = random_tensor(9, 1, 1, 16);
  answer<> a(1, 1, 16);
  CHECK_THROWS_WITH(attention{causal{}}(host(), owner.view(0), s, q.rows(), a.out.rows()),
                    containing("has 1 queries and 0 new tokens; over a window"));
}

TEST_CASE("attend: StreamingLLM's positions are those of the cache", "[attention]") {
  constexpr int width = 9, sinks = 3, tokens = 40, dim = 16;
  for (const bool interleaved : {false, true}) {
    const rope_table table(12, 100.0, interleaved ? rope_pairs::interleaved : rope_pairs::half_split);
    const rope turned = table;
    using kv = policy<contiguous, rotated<fp32<>>, fp32<>, window<dynamic, sinks>>;
    cache<kv> owner({.layers = 1, .kv_heads = 1, .tokens = tokens, .max_step = 4}, host_memory(),
                    kv(rotated<fp32<>>(dim), fp32<>(dim), window<dynamic, sinks>(width)));
    const sequence s[] = {owner.open()};
    const tensor<float> k = random_tensor(1, tokens, 1, dim), v = random_tensor(2, tokens, 1, dim),
                        q = random_tensor(3, tokens, 2, dim);
    std::vector<unsigned char> workspace(owner.workspace_bytes(host(), 1));
    in_chunks(tokens, 4, [&](idx first, int count) {
      const int counts[] = {count};
      const step st = owner.begin(host(), s, counts, workspace);
      tensor<float> some(count, 2, dim);
      for (int i = 0; i < count * 2 * dim; ++i) some.data[std::size_t(i)] = q.data[std::size_t(first * 2 * dim + i)];
      append(host(), owner.view(0), st, some.rows(), rows<const float>{k.rows().at(first, 0), dim, dim, 1, dim},
             rows<const float>{v.rows().at(first, 0), dim, dim, 1, dim}, turned);
      answer<> a(count, 2, dim);
      attention<causal, cache_positions>({}, 0, {turned})(host(), owner.view(0), st, some.rows(), a.out.rows(),
                                                          a.lse_rows());
      owner.commit(st);
      for (int i = 0; i < count; ++i)
        for (int head = 0; head < 2; ++head) {
          // The query and the keys it sees are numbered by their places in the cache, and turned by those.
          const idx position = first + i;
          std::vector<std::vector<double>> turned_keys, values;
          for (idx p = 0; p <= position; ++p)
            if (p < sinks || p > position - width) {
              turned_keys.push_back(widened(k.row(p, 0)));
              values.push_back(widened(v.row(p, 0)));
              support::turn(turned_keys.back(), idx(turned_keys.size()) - 1, 12, 100.0, interleaved);
            }
          std::vector<oracle_key> keys;
          for (std::size_t j = 0; j < turned_keys.size(); ++j) keys.push_back({turned_keys[j], values[j], idx(j)});
          std::vector<double> query = widened(q.row(position, head));
          support::turn(query, idx(keys.size()) - 1, 12, 100.0, interleaved);
          const oracle_state want = oracle(query, keys, 0.25, dim, all_keys{});
          INFO("query " << position << ", " << keys.size() << " keys");
          CHECK(difference(a.out.row(i, head), want.out) == "");
          const float lse = a.lse_of(i, head);
          CHECK(difference(std::span(&lse, 1), std::vector<double>{want.lse}) == "");
        }
    });
  }
}
