#include "support/catch.hpp"
#include "support/tensors.hpp"

#include <kvilt/attention/sink_logit.hpp>
#include <kvilt/core/thread_pool.hpp>

namespace {

using namespace kvilt;
using namespace support;

constexpr float minus_inf = -std::numeric_limits<float>::infinity();

// By the oracle a sink is a key whose value is 0 and whose score is given: the one at position -1.
struct causal_with_sink : band {
  double sink;
  causal_with_sink(idx q, double s) : band(q, 1 << 30), sink(s) {}
  bool keep(const oracle_key& key) const { return key.position < 0 || band::keep(key); }
  double score(const oracle_key& key, double s) const { return key.position < 0 ? sink : s; }
};

std::string wrong_with_sinks(const text& t, const step_item& item, const tensor<float>& q, const answer<>& got,
                             const std::vector<float>& sinks) {
  const std::vector<double> k(std::size_t(t.k.dim), 0.0), v(std::size_t(t.v.dim), 0.0);
  for (int i = 0; i < item.queries; ++i)
    for (int head = 0; head < q.heads; ++head) {
      std::vector<oracle_key> keys = t.keys(head / (q.heads / t.k.heads));
      keys.resize(std::size_t(item.n.after));
      keys.push_back({k, v, -1});
      const oracle_state want =
          oracle(widened(q.row(item.q_row + i, head)), keys, 1 / std::sqrt(double(t.k.dim)), std::size_t(t.v.dim),
                 causal_with_sink(item.query_position(i), double(sinks[std::size_t(head)])));
      const float lse = got.lse_of(item.q_row + i, head);
      std::string wrong = difference(got.out.row(item.q_row + i, head), want.out);
      if (wrong.empty()) wrong = difference(std::span(&lse, 1), std::vector<double>{want.lse});
      if (!wrong.empty()) return "query " + std::to_string(i) + ", head " + std::to_string(head) + ": " + wrong;
    }
  return {};
}

const std::vector<float> sinks = {minus_inf, -3, 0, 0.5f, 4, 90};

}  // namespace

TEST_CASE("sink_logit: a logit per head is part of the softmax, once", "[attention]") {
  for (const int tokens : {1, 63, 64, 65, 200})
    for (const int queries : {1, 3, 40}) {
      const text t(tokens, 2, 16, 24);
      const tensor<float> q = random_tensor(9, queries, 6, 16);
      const planned_step s(host(), {tokens}, {0}, {queries}, 16, 24);  // some before the first token
      INFO(tokens << " tokens, " << queries << " queries");
      CHECK(wrong_with_sinks(t, s->items[0], q, t.attend(attention{compose(causal{}, sink_logit{sinks.data()})}, s, q),
                             sinks) == "");
      CHECK(wrong_with_sinks(t, s->items[0], q, t.attend(attention{compose(sink_logit{sinks.data()}, causal{})}, s, q),
                             sinks) == "");
    }
}

TEST_CASE("sink_logit: a query that sees nothing else attends to nothing", "[attention]") {
  const text t(3, 2, 16, 8);
  const tensor<float> q = random_tensor(9, 5, 6, 16);
  const answer<> got =
      t.attend(attention{compose(causal{}, sink_logit{sinks.data()})}, planned_step(host(), {3}, {0}, {5}, 16, 8), q);
  for (int i = 0; i < 2; ++i)
    for (int head = 0; head < 6; ++head) {
      CHECK(got.lse_of(i, head) == sinks[std::size_t(head)]);
      for (const float x : got.out.row(i, head)) CHECK(x == 0.0f);
    }
}

TEST_CASE("sink_logit: a sink of minus infinity changes no bit", "[attention]") {
  const std::vector<float> none(6, minus_inf);
  const text t(90, 2, 16, 8);
  const tensor<float> q = random_tensor(9, 20, 6, 16);
  const planned_step s(host(), {90}, {0}, {20}, 16, 8);
  const answer<> with = t.attend(attention{compose(causal{}, sink_logit{none.data()})}, s, q),
                 without = t.attend(attention{causal{}}, s, q);
  CHECK((same_bits(with.out.data, without.out.data) && same_bits(with.lse, without.lse)));
}

TEST_CASE("sink_logit: a sink counts once however the work is shared out", "[attention][threads]") {
  const int tokens = 3000;
  const text t(tokens, 2, 16, 8);
  thread_pool pool(3);
  const host threads(pool);
  for (const int queries : {1, 50}) {
    const tensor<float> q = random_tensor(9, queries, 6, 16);
    const attention attend{compose(causal{}, sink_logit{sinks.data()})};
    answer<> shared(queries, 6, 8);
    attend(threads, t.view(), planned_step(threads, {tokens}, {0}, {queries}, 16, 8), q.rows(), shared.out.rows(),
           shared.lse_rows());
    const answer<> alone = t.attend(attend, planned_step(host(), {tokens}, {0}, {queries}, 16, 8), q);
    CHECK((same_bits(shared.out.data, alone.out.data) && same_bits(shared.lse, alone.lse)));
  }
}

TEST_CASE("sink_logit: NaN scores are not lost beside a sink", "[attention]") {
  text t(2, 1, 8, 8);
  for (float& x : t.k.data) x = NAN;
  append(host(), t.view(), planned_step(host(), {0}, {2}, {}, 8, 8), t.k.rows(), t.v.rows());
  const float logit = 3;
  const answer<> got = t.attend(attention{compose(causal{}, sink_logit{&logit})},
                                planned_step(host(), {2}, {0}, {1}, 8, 8), random_tensor(9, 1, 1, 8));
  CHECK(std::isnan(got.out.data[0]));
  CHECK(std::isnan(got.lse[0]));
}

TEST_CASE("sink_logit: parts over disjoint keys merge with the sink counted once", "[attention]") {
  const text t(100, 2, 16, 24);
  const tensor<float> q = random_tensor(9, 5, 6, 16);
  const planned_step s(host(), {100}, {0}, {5}, 16, 24);
  // Keys 0 to 39, those from 40 on, and a part without any.
  struct part {
    idx first, last;
    bool keep(const where& w) const { return w.k_position >= first && w.k_position < last; }
  };
  const part a{0, 40}, b{40, 1000}, empty{0, 0};
  const sink_logit sink{sinks.data()};
  const answer<> whole = t.attend(attention{compose(causal{}, sink)}, s, q);
  const auto is_whole = [&](const answer<>& got) {
    const std::vector<double> out(whole.out.data.begin(), whole.out.data.end()),
        lse(whole.lse.begin(), whole.lse.end());
    return difference(got.out.data, out) + difference(got.lse, lse);
  };
  const auto merged = [&](answer<> x, answer<> y) {
    answer<> both(5, 6, 24);
    merge(5, x.out.rows(), x.lse_rows(), y.out.rows(), y.lse_rows(), both.out.rows(), both.lse_rows());
    return both;
  };
  const auto over = [&](const auto&... variants) { return t.attend(attention{compose(causal{}, variants...)}, s, q); };
  // One part has the sink, whichever.
  CHECK(is_whole(merged(over(a, sink), over(b))) == "");
  CHECK(is_whole(merged(over(a), over(b, sink))) == "");
  CHECK(is_whole(merged(over(empty, sink), over())) == "");
  // None has, and it is added to the whole.
  answer<> later = merged(over(a), over(b));
  merge_sink(5, later.out.rows(), later.lse_rows(), sinks.data());
  CHECK(is_whole(later) == "");
  CHECK_THROWS_WITH(merge_sink(5, later.out.rows(), {}, sinks.data()), containing("without log-sum-exps"));
}
