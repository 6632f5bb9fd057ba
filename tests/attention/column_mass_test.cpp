#include "support/catch.hpp"
#include "support/filled_cache.hpp"

#include <kvilt/core/thread_pool.hpp>

#include <cmath>
#include <functional>

namespace {

using namespace kvilt;
using namespace support;

constexpr float minus_inf = -std::numeric_limits<float>::infinity();
constexpr float untouched = 0.125f;  // what is there before anything is added

// A step by hand over a view, as a user of the verbs has it.
template <class View>
struct asked_step {
  const View& view;
  int group;
  std::vector<step_item> items;
  step s;
  std::vector<unsigned char> workspace;
  tensor<float> q;

  asked_step(const View& v, std::vector<step_item> all, int g, const host& exec = host())
      : view(v),
        group(g),
        items(std::move(all)),
        workspace(workspace_bytes(exec, int(items.size()), v.k_dim(), v.v_dim()), 0xff),
        q(1, v.kv_heads() * g, v.k_dim()) {
    s.items = items.data(), s.size = int(items.size());
    for (const step_item& item : items) {
      s.q_rows = std::max(s.q_rows, item.q_row + item.queries);
      s.kv_rows = std::max(s.kv_rows, item.kv_row + item.new_tokens);
    }
    s.scratch = workspace.data(), s.scratch_bytes = workspace.size();
    q = random_tensor(5, std::max<idx>(s.q_rows, 1), q.heads, q.dim);
  }
  asked_step(const asked_step&) = delete;

  template <class Attention>
  std::vector<float> lse(const Attention& a, const host& exec = host()) const {
    tensor<float> out(q.tokens(), q.heads, view.v_dim());
    std::vector<float> all(std::size_t(q.tokens() * q.heads), 0.0f);
    a(exec, view, s, q.rows(), out.rows(), natural_lse{all.data(), q.heads});
    return all;
  }
  // [sequences][kv heads][room]
  template <class Attention>
  std::vector<float> mass(const Attention& a, std::vector<float> lse, int room, int last = all_queries,
                          const host& exec = host()) const {
    std::vector<float> sums(std::size_t(sequences() * view.kv_heads() * room), untouched);
    column_mass(exec, a, view, s, q.rows(), natural_lse{lse.data(), q.heads},
                packed_rows(sums.data(), view.kv_heads(), room), last);
    return sums;
  }
  idx sequences() const {
    idx most = 0;
    for (const step_item& item : items) most = std::max<idx>(most, item.sequence + 1);
    return most;
  }
  int room() const {
    idx most = 0;
    for (const step_item& item : items) most = std::max(most, item.n.after);
    return int(most) + 3;
  }
};

// What a query's softmax makes of the rows that are kept, one number after another in double precision.
std::vector<double> weights_of(std::span<const float> q, const kept_rows& rows, const kept_by& kept, idx query,
                               double scale, const std::function<double(idx, double)>& score, double sink) {
  std::vector<double> scores;
  double high = sink;
  for (std::size_t i = 0; i < rows.positions.size(); ++i) {
    const idx key = rows.positions[i];
    const bool hidden = key > query || (kept.width > 0 && key >= kept.sinks && query - key >= kept.width);
    double dot = 0;
    for (std::size_t d = 0; d < q.size(); ++d) dot += double(q[d]) * rows.k[i * q.size() + d];
    scores.push_back(hidden ? minus_infinity : score(key, scale * dot));
    high = std::max(high, scores.back());
  }
  double sum = std::exp(sink - high);
  for (const double s : scores) sum += std::exp(s - high);
  for (double& s : scores) s = s == minus_infinity ? 0 : std::exp(s - high) / sum;
  return scores;
}

// Where the sums are not those of the oracle, in words.
template <class View>
std::string wrong_sums(const asked_step<View>& asked, const kept_by& kept, const std::vector<float>& got, int room,
                       int last, const std::function<double(idx, int head, idx query, double)>& score,
                       const std::vector<double>& sinks = {}) {
  const int kv_heads = asked.view.kv_heads();
  const tolerance within = support::within(host(), asked.view);
  std::vector<bool> seen(got.size(), false);
  for (const step_item& item : asked.items) {
    if (item.sequence < 0) continue;
    for (int head = 0; head < kv_heads; ++head) {
      const kept_rows rows = rows_of(asked.view, item, head);
      std::vector<double> want(rows.positions.size(), 0.0);
      for (int i = std::max(0, item.queries - last); i < item.queries; ++i)
        for (int h = head * asked.group; h < (head + 1) * asked.group; ++h) {
          const idx query = item.query_position(i);
          const std::vector<double> one = weights_of(
              asked.q.row(item.q_row + i, h), rows, kept, query, 1 / std::sqrt(double(asked.q.dim)),
              [&](idx key, double s) { return score(key, h, query, s); },
              sinks.empty() ? minus_infinity : sinks[std::size_t(h)]);
          for (std::size_t k = 0; k < want.size(); ++k) want[k] += one[k];
        }
      for (std::size_t k = 0; k < want.size(); ++k) {
        const std::size_t at = std::size_t(idx(item.sequence) * kv_heads + head) * std::size_t(room) + k;
        seen[at] = true;
        const double number = double(got[at]) - double(untouched), allowed = 1e-5 + 4 * within.relative * want[k];
        if (!(std::abs(number - want[k]) <= allowed))
          return kept.name + ": sequence " + std::to_string(item.sequence) + ", head " + std::to_string(head) +
                 ", key " + std::to_string(k) + ": " + std::to_string(number) + ", not " + std::to_string(want[k]);
      }
    }
  }
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!seen[i] && got[i] != untouched) return kept.name + ": number " + std::to_string(i) + " is nobody's";
  return {};
}

double as_it_is(idx, int, idx, double s) {
  return s;
}

template <class Policy>
void check_policy(int number, const Policy& policy = {}) {
  const kept_by kept = filled_cache<Policy>::kept(policy);
  for (const attend_shape& shape : shapes_for(number, kept, true)) {
    if (shape.batch.empty() || shape.what == "many") continue;
    const filled_cache<Policy> cache(policy, shape);
    const auto view = cache.view();
    const asked_step asked(view, cache.items(), shape.group);
    INFO(kept.name << ", " << shape.what);
    for (const int last : {all_queries, 1, 3}) {
      const attention a{causal{}};
      CHECK(wrong_sums(asked, kept, asked.mass(a, asked.lse(a), asked.room(), last), asked.room(), last, as_it_is) ==
            "");
    }
  }
}

}  // namespace

TEST_CASE("column_mass: the sums of each key's weights, whatever the cache", "[attention]") {
  check_policy(0, policy<contiguous, fp32<40>>());
  check_policy(1, policy<paged<3>, rotated<q8<64>>, q4<64>, keep_all, 4, 8>());
  check_policy(2, policy<paged<16>, e4m3<96>, fp16<32>, window<9, 2>>());
  check_policy(3, policy<contiguous, q4<64>, bf16<64>, window<33>>());
  check_policy(4, policy<paged<64>, q4_channel<64>, q4<64>, keep_all, 3, 32>());
  using latent = concat<e4m3<128>, bf16<64>>;
  check_policy(5, policy<paged<64>, latent, prefix<latent, 128>>());
}

TEST_CASE("column_mass: keys that keys are too many for one worker, in several leaves", "[attention]") {
  const int tokens = 2500;
  const attend_shape shape{"long", 2, 3, {{tokens - 70, 70}, {1500, 1}}};
  using kept_policy = policy<paged<19>, q8<64>, fp16<64>>;
  const filled_cache<kept_policy> cache(kept_policy(), shape);
  const auto view = cache.view();
  const attention a{causal{}};
  const asked_step asked(view, cache.items(), shape.group);
  const std::vector<float> one = asked.mass(a, asked.lse(a), asked.room());
  CHECK(wrong_sums(asked, filled_cache<kept_policy>::kept({}), one, asked.room(), all_queries, as_it_is) == "");

  SECTION("bits do not depend on the workers") {
    thread_pool pool(3);
    const host exec(pool);
    const asked_step by_three(view, cache.items(), shape.group, exec);
    CHECK(same_bits(by_three.mass(a, by_three.lse(a, exec), asked.room(), all_queries, exec), one));
  }
  SECTION("nor on the neighbours") {
    const asked_step alone(view, {cache.items()[0]}, shape.group);
    std::vector<float> first(one.begin(), one.begin() + 2 * asked.room());
    CHECK(same_bits(alone.mass(a, alone.lse(a), asked.room()), first));
  }
}

TEST_CASE("column_mass: what the variant makes of the scores", "[attention]") {
  const attend_shape shape{"variants", 2, 2, {{90, 5}, {0, 3}}};
  using kept_policy = policy<paged<16>, fp32<32>>;
  const filled_cache<kept_policy> cache(kept_policy(), shape);
  const auto view = cache.view();
  const asked_step asked(view, cache.items(), shape.group);
  const kept_by kept = filled_cache<kept_policy>::kept({});
  const auto check = [&](const auto& variant, const auto& score, const std::vector<double>& sinks = {}) {
    const attention a{variant};
    CHECK(wrong_sums(asked, kept, asked.mass(a, asked.lse(a), asked.room()), asked.room(), all_queries, score, sinks) ==
          "");
  };
  check(compose(causal{}, soft_cap{2.0f}), [](idx, int, idx, double s) { return 2 * std::tanh(s / 2); });
  const std::vector<float> sinks = {0.5f, -1, 3, minus_inf};
  check(compose(causal{}, sink_logit{sinks.data()}), as_it_is, {0.5, -1, 3, minus_infinity});
}

TEST_CASE("column_mass: it is e^(score - log-sum-exp), also of a log-sum-exp over more keys or fewer", "[attention]") {
  const attend_shape shape{"shifted", 1, 2, {{40, 2}}};
  using kept_policy = policy<contiguous, fp32<16>>;
  const filled_cache<kept_policy> cache(kept_policy(), shape);
  const auto view = cache.view();
  const attention a{causal{}};
  const asked_step asked(view, cache.items(), shape.group);
  const std::vector<float> lse = asked.lse(a), plain = asked.mass(a, lse, asked.room());
  for (const float by : {1.5f, -6.0f}) {
    std::vector<float> shifted = lse;
    for (float& x : shifted) x += by;
    const std::vector<float> got = asked.mass(a, shifted, asked.room());
    for (std::size_t k = 0; k < 42; ++k)
      CHECK_THAT(got[k] - untouched, Catch::Matchers::WithinRel((plain[k] - untouched) * std::exp(-by), 1e-4f) ||
                                         Catch::Matchers::WithinAbs(0, 1e-6));
  }
  // Scores far above the log-sum-exp are as large as that says, and what a query does not see is nothing all the same.
  std::vector<float> low = lse;
  for (float& x : low) x -= 120;
  const std::vector<float> high = asked.mass(a, low, asked.room());
  for (std::size_t k = 0; k < high.size(); ++k) {
    INFO("number " << k << ": " << high[k] << ", at the log-sum-exp " << plain[k]);
    CHECK(!std::isnan(high[k]));
    CHECK((high[k] == untouched) == (plain[k] == untouched));
  }
  // Who sees nothing gives nothing, and what is not a number stays in its own sequence's sums.
  CHECK(asked.mass(a, std::vector<float>(lse.size(), minus_inf), asked.room()) ==
        std::vector<float>(plain.size(), untouched));
  const std::vector<float> none = asked.mass(a, std::vector<float>(lse.size(), NAN), asked.room());
  for (std::size_t k = 0; k < none.size(); ++k) CHECK(std::isnan(none[k]) == (k < 42));
}

TEST_CASE("column_mass: what cannot be is refused before anything is written", "[attention]") {
  const attend_shape shape{"refused", 2, 2, {{20, 2}, {5, 1}}};
  using kept_policy = policy<paged<16>, fp32<16>>;
  const filled_cache<kept_policy> cache(kept_policy(), shape);
  const auto view = cache.view();
  const attention a{causal{}};
  const asked_step asked(view, cache.items(), shape.group);
  std::vector<float> lse = asked.lse(a), sums(2 * 2 * 22, untouched);
  const auto call = [&](natural_lse l, rows<float> mass, int last = all_queries) {
    column_mass(host(), a, view, asked.s, asked.q.rows(), l, mass, last);
  };
  const natural_lse fine{lse.data(), 4};
  CHECK_THROWS_WITH(call({}, packed_rows(sums.data(), 2, 22)), containing("log-sum-exps of 3 rows is null"));
  CHECK_THROWS_WITH(call({lse.data(), 3}, packed_rows(sums.data(), 2, 22)),
                    containing("rows of log-sum-exps are 3 apart; there are 4 heads"));
  CHECK_THROWS_WITH(call(fine, packed_rows(sums.data(), 2, 21)),
                    containing("sequence 0 has 22 keys; there is room for the column sums of 21"));
  CHECK_THROWS_WITH(call(fine, packed_rows(sums.data(), 4, 22)), containing("column sums are of 4 heads"));
  CHECK_THROWS_WITH(call(fine, packed_rows<float>(nullptr, 2, 22)), containing("column sums of 2 sequences is null"));
  CHECK_THROWS_WITH(call(fine, {sums.data(), 22, 22, 2, 22}),
                    containing("column sums of 22 numbers lie on each other"));
  CHECK_THROWS_WITH(call(fine, packed_rows(sums.data(), 2, 22), -1), containing("the last -1 queries"));
  const asked_step twice(view, {cache.items()[0], cache.items()[0]}, shape.group);
  CHECK_THROWS_WITH(column_mass(host(), a, view, twice.s, twice.q.rows(), fine, packed_rows(sums.data(), 2, 22)),
                    containing("sequence 0 is in the step twice with queries"));
  CHECK(sums == std::vector<float>(sums.size(), untouched));
  CHECK_NOTHROW(call(fine, packed_rows(sums.data(), 2, 22)));
}
