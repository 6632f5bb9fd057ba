#include "support/catch.hpp"
#include "support/tensors.hpp"

#include <kvilt/attention/alibi.hpp>
#include <kvilt/attention/logit_bound.hpp>
#include <kvilt/attention/soft_cap.hpp>

#include <set>

namespace {

using namespace kvilt;
using namespace support;

struct sloped : band {
  double slope, cap;
  sloped(idx q, double m, double c = 0, idx w = 1 << 30) : band(q, w), slope(m), cap(c) {}
  double score(const oracle_key& key, double s) const {
    return (cap > 0 ? cap * std::tanh(s / cap) : s) - slope * double(query - key.position);
  }
};

// The share of the softmax's mass beyond distance `width` at its largest: every logit there is +bound, that of the
// query's own key -bound, and no other key is seen.
long double worst_share(long double slope, long double bound, idx width) {
  long double beyond = 0;
  for (idx d = width;; ++d) {
    const long double more = std::exp(bound - slope * (long double)d);
    beyond += more;
    if (more < beyond * 1e-22L || more == 0) break;
  }
  return beyond / (beyond + std::exp(-bound));
}

// The share of a query's mass that its head's width leaves out, over all the keys before it.
double left_out(const text& t, std::span<const float> q, idx position, int kv_head, double scale, double slope,
                idx width) {
  double in = 0, out = 0;
  for (idx p = 0; p <= position; ++p) {
    double dot = 0;
    for (std::size_t d = 0; d < q.size(); ++d) dot += double(q[d]) * double(t.k.row(p, kv_head)[d]);
    (position - p < width ? in : out) += std::exp(scale * dot - slope * double(position - p));
  }
  return out / (in + out);
}

// Remembers which keys it was asked about.
struct recorder {
  std::set<std::pair<int, idx>>* distances;
  float score(const where& w, float s) const {
    distances->insert({w.q_head, w.q_position - w.k_position});
    return s;
  }
};

}  // namespace

TEST_CASE("alibi: slopes of any number of heads", "[attention]") {
  const auto slopes = [](int heads) {
    const alibi_table table(heads);
    return std::vector<float>(table.slopes().begin(), table.slopes().end());
  };
  CHECK(slopes(1) == std::vector<float>{1 / 256.0f});
  CHECK(slopes(8) == std::vector<float>{0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f});
  const std::vector<float> sixteen = slopes(16), twelve = slopes(12), three = slopes(3);
  CHECK(sixteen[0] == Approx(0.70710678));
  CHECK(sixteen[15] == Approx(1 / 256.0));
  // Those of 8, then every other of 16.
  REQUIRE(twelve.size() == 12);
  for (std::size_t i = 0; i < 12; ++i) CHECK(twelve[i] == (i < 8 ? slopes(8)[i] : sixteen[2 * (i - 8)]));
  CHECK(three == std::vector<float>{1 / 16.0f, 1 / 256.0f, 1 / 4.0f});
  for (int heads = 1; heads < 70; ++heads) {
    const std::vector<float> all = slopes(heads);
    CHECK(std::set<float>(all.begin(), all.end()).size() == std::size_t(heads));
  }
  CHECK_THROWS_WITH(alibi_table(0), containing("ALiBi over 0 heads"));
}

TEST_CASE("alibi: scores fall with the distance, head by head", "[attention]") {
  for (const int heads : {2, 6, 8}) {
    const alibi_table table(heads);
    const text t(150, 2, 16, 24);
    const tensor<float> q = random_tensor(9, 40, heads, 16);
    const planned_step s(host(), {150}, {0}, {40}, 16, 24);
    const auto meant = [&](int, idx position, int head) {
      return sloped(position, double(table.slopes()[std::size_t(head)]));
    };
    CHECK(wrong_answers(t, s->items[0], q, t.attend(attention{compose(causal{}, alibi(table))}, s, q), 0.25, meant) ==
          "");
  }
  const std::vector<float> own = {0.3f, 0.02f};
  const alibi_table table(own);
  const text t(70, 1, 16, 8);
  const tensor<float> q = random_tensor(9, 9, 2, 16);
  const planned_step s(host(), {70}, {0}, {9}, 16, 8);
  CHECK(wrong_answers(t, s->items[0], q, t.attend(attention{compose(causal{}, soft_cap{0.8f}, alibi(table))}, s, q),
                      0.25, [&](int, idx position, int head) {
                        return sloped(position, double(own[std::size_t(head)]), double(0.8f));
                      }) == "");
}

TEST_CASE("alibi: at the worst what a width leaves out is the error, and a key less would be more", "[attention]") {
  CHECK(alibi_width(1 / 2.0, 10, 1e-6) == 70);
  CHECK(alibi_width(1 / 256.0, 10, 1e-6) == 10'077);
  for (const double slope : {0.7071, 0.5, 0.1, 1 / 64.0, 1 / 256.0})
    for (const double bound : {0.0, 0.5, 3.0, 20.0})
      for (const double error : {1e-2, 1e-4, 1e-8}) {
        INFO("slope " << slope << ", bound " << bound << ", error " << error);
        const idx width = alibi_width(slope, bound, error);
        CHECK(worst_share(slope, bound, width) <= error);
        if (width > 1) CHECK(worst_share(slope, bound, width - 1) > error / (1 + error));
      }
}

TEST_CASE("alibi: without a bound nothing is left out", "[attention]") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double bound : {inf, std::nan(""), 1e300}) CHECK(alibi_width(0.5, bound, 1e-6) == kvilt::detail::no_end);
  alibi_table table(4);
  table.truncate(inf, 1e-6);
  const alibi all = table;
  CHECK(all.keep({0, 3, 0, 0, 1'000'000, 0}));
  CHECK(all.tiles({0, 3, 0, 0, 1'000'000, 0}).first == 0);
  CHECK(alibi_width(0.5, 0, 1) == 2);
  CHECK(alibi_width(50, 0, 1) == 1);  // its own key at least
  CHECK_THROWS_WITH(alibi_width(0, 1, 1e-6), containing("slope is 0"));
  CHECK_THROWS_WITH(alibi_width(0.5, -1, 1e-6), containing("bounded by -1"));
  CHECK_THROWS_WITH(alibi_width(0.5, 1, 0), containing("may leave out is 0"));
  CHECK_THROWS_WITH(alibi_width(0.5, 1, std::nan("")), containing("may leave out is nan"));
}

TEST_CASE("alibi: over real rows less is left out than was allowed, and no key beyond is read", "[attention]") {
  constexpr int tokens = 700, heads = 4;
  const text t(tokens, 2, 16, 24);
  const tensor<float> q = random_tensor(9, 50, heads, 16);
  const planned_step s(host(), {tokens}, {0}, {50}, 16, 24);
  const double bound = 0.25 * double(largest_norm(q.tokens(), q.rows())) * double(largest_norm(tokens, t.k.rows()));
  for (const double error : {1e-2, 1e-5}) {
    alibi_table table(heads);
    table.truncate(bound, error);
    std::set<std::pair<int, idx>> asked;
    const answer<> got = t.attend(attention{compose(causal{}, recorder{&asked}, alibi(table))}, s, q);
    double largest = 0;
    for (const float x : t.v.data) largest = std::max(largest, std::abs(double(x)));
    for (int i = 0; i < 50; ++i)
      for (int head = 0; head < heads; ++head) {
        const idx position = tokens - 50 + i, width = table.widths()[std::size_t(head)];
        const double slope = double(table.slopes()[std::size_t(head)]);
        CHECK(left_out(t, q.row(i, head), position, head / 2, 0.25, slope, width) <= error);
        // Outputs are weighted means: they move by no more than twice the share times the largest value.
        const oracle_state want = oracle(widened(q.row(i, head)), t.keys(head / 2), 0.25, 24, sloped(position, slope));
        for (std::size_t d = 0; d < 24; ++d)
          CHECK(std::abs(double(got.out.row(i, head)[d]) - want.out[d]) <= 2 * error * largest + 1e-5);
      }
    CHECK(wrong_answers(t, s->items[0], q, got, 0.25, [&](int, idx position, int head) {
            return sloped(position, double(table.slopes()[std::size_t(head)]), 0, table.widths()[std::size_t(head)]);
          }) == "");
    CHECK(table.widths()[0] < 300);  // or the rest says nothing
    for (const auto& [head, distance] : asked) CHECK((distance >= 0 && distance < table.widths()[std::size_t(head)]));
  }
}

TEST_CASE("alibi: a soft cap is a bound", "[attention]") {
  constexpr int tokens = 400;
  text t(tokens, 1, 16, 8);
  for (float& x : t.k.data) x *= 1000;  // any numbers at all
  append(host(), t.view(), planned_step(host(), {0}, {tokens}, {}, 16, 8), t.k.rows(), t.v.rows());
  const tensor<float> q = random_tensor(9, 20, 2, 16);
  const planned_step s(host(), {tokens}, {0}, {20}, 16, 8);
  alibi_table table(2);
  table.truncate(2, 1e-3);
  const answer<> got = t.attend(attention{compose(causal{}, soft_cap{2}, alibi(table))}, s, q);
  CHECK(table.widths()[0] < 230);
  for (int i = 0; i < 20; ++i)
    for (int head = 0; head < 2; ++head) {
      const oracle_state want = oracle(widened(q.row(i, head)), t.keys(0), 0.25, 8,
                                       sloped(tokens - 20 + i, double(table.slopes()[std::size_t(head)]), 2));
      // ln(1 - share) and no more is missing of the log-sum-exp.
      CHECK(want.lse - double(got.lse_of(i, head)) <= -std::log1p(-1e-3) + 1e-5);
      CHECK(want.lse - double(got.lse_of(i, head)) >= -1e-5);
    }
}

TEST_CASE("alibi: a truncated query's bits do not depend on its neighbours", "[attention]") {
  const text t(300, 1, 16, 24);
  const tensor<float> q = random_tensor(9, 40, 8, 16);
  alibi_table table(8);
  table.truncate(1, 1e-3);
  const attention attend{compose(causal{}, alibi(table))};
  const answer<> together = t.attend(attend, planned_step(host(), {300}, {0}, {40}, 16, 24), q);
  for (const int i : {0, 17, 39}) {
    tensor<float> one(1, 8, 16);
    for (int j = 0; j < 8 * 16; ++j) one.data[std::size_t(j)] = q.data[std::size_t(i * 8 * 16 + j)];
    const answer<> alone = t.attend(attend, planned_step(host(), {260 + i + 1}, {0}, {1}, 16, 24), one);
    for (int head = 0; head < 8; ++head) {
      CHECK(alone.lse_of(0, head) == together.lse_of(i, head));
      CHECK(
          std::equal(alone.out.row(0, head).begin(), alone.out.row(0, head).end(), together.out.row(i, head).begin()));
    }
  }
}
