#include "support/attention_case.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

namespace support {
namespace {

constexpr std::array<int, 11> group_sizes = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 64};
constexpr std::array<int, 6> head_counts = {1, 2, 3, 5, 8, 12};
constexpr std::array<int, 5> query_counts = {2, 4, 7, 33, 1};

template <class List>
auto nth(const List& list, int n) {
  return list[std::size_t(n) % list.size()];
}

// Lengths around the edges of tiles, pages and windows.
std::vector<idx> edges(const kept_by& kept) {
  std::vector<idx> all = {0, 1, 15, 16, 17, kept.page - 1, kept.page, kept.page + 1, 33, 100};
  if (kept.width > 0)
    for (const idx edge : {kept.width - 1, kept.width, kept.width + 1, kept.width + kept.sinks + 40})
      all.push_back(edge);
  return all;
}

attend_shape one_query_each(int number, const kept_by& kept) {
  attend_shape s{"decode", nth(head_counts, number), nth(group_sizes, number), {}};
  const std::vector<idx> lengths = edges(kept);
  for (int i = 0; i < 7; ++i) {
    const idx length = nth(lengths, 3 * number + 2 * i + i / 4);
    s.batch.push_back(length > 0 ? prompt{length - 1, 1} : prompt{});
  }
  s.batch[std::size_t(number % 7)] = padded;
  return s;
}

attend_shape some_queries(int number, const kept_by& kept, bool own_queries) {
  attend_shape s{"chunk", nth(head_counts, number + 3), nth(group_sizes, number + 4), {}};
  s.lengths_on_device = number % 2 == 0;
  const std::vector<idx> lengths = edges(kept);
  for (int i = 0; i < 3; ++i) {
    const int fresh = nth(query_counts, number + 2 * i);
    const idx length = std::max<idx>(fresh, nth(lengths, 5 * number + 4 * i));
    s.batch.push_back({length - fresh, fresh});
  }
  // Tokens without queries; queries older than the step; queries before the first token, who see nothing.
  s.batch[1].queries = number % 3 == 0 ? 0 : -1;
  if (!own_queries) {
    s.batch.push_back({9, 0, 3});
    s.batch.push_back({0, 2, 4});
  }
  return s;
}

attend_shape long_text(int number) {
  attend_shape s{"long", nth(head_counts, number + 1), nth(group_sizes, number + 7), {}};
  const int fresh = number % 2 == 0 ? 1 : 4;
  s.batch = {{1000 + 7 * number % 60 - fresh, fresh}};
  s.scale = 0.21f;
  return s;
}

attend_shape many_sequences(int number) {
  attend_shape s{"many", 1 + number % 2, 4, {}};
  s.lengths_on_device = number % 2 == 1;
  for (int i = 0; i < 300; ++i) {
    const int fresh = i % 3, before = i * 7 % 20;
    s.batch.push_back(i % 11 == 5 ? padded : i % 13 == 6 ? prompt{} : prompt{before, fresh});
  }
  return s;
}

}  // namespace

std::vector<attend_shape> shapes_for(int number, const kept_by& kept, bool own_queries) {
  std::vector<attend_shape> all = {one_query_each(number, kept), some_queries(number, kept, own_queries || kept.width),
                                   long_text(number)};
  if (number % 3 == 0) all.push_back(many_sequences(number));
  if (number % 4 == 1) {
    all.push_back({"nobody", 3, 5, {}});
    all.push_back({"empty", 2, 4, {{}, {}, padded}});
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].head_gap = i % 2 == 0 ? 8 : 0;
    all[i].token_gap = i % 3 == 0 ? 24 : 0;
  }
  return all;
}

meaning means_causal() {
  meaning m;
  m.keep = [](const kvilt::where& w) { return w.k_position <= w.q_position; };
  return m;
}

idx attention_case::q_rows() const {
  idx count = 0;
  for (const kvilt::step_item& item : items) count += item.queries;
  return count;
}

namespace {

// One query's keys, masks and scores.
struct asked {
  const attention_case& c;
  kvilt::where w;

  bool keep(const oracle_key& key) const {
    kvilt::where at = w;
    at.k_position = key.position;
    const bool hidden = c.kept.width > 0 && key.position >= c.kept.sinks && w.q_position - key.position >= c.kept.width;
    return !hidden && c.means.keep(at);
  }
  double score(const oracle_key& key, double s) const {
    kvilt::where at = w;
    at.k_position = key.position;
    return c.means.score(at, s);
  }
};

// A key without a value joins the softmax.
void add_sink(oracle_state& state, double logit) {
  const double high = std::max(state.lse, logit),
               lse = high + std::log(std::exp(state.lse - high) + std::exp(logit - high));
  for (double& x : state.out) x *= std::exp(state.lse - lse);
  state.lse = lse;
}

oracle_state answer_for(const attention_case& c, const kept_rows& rows, const kvilt::where& w,
                        std::span<const float> q) {
  const std::size_t k_dim = std::size_t(c.kept.k_dim), v_dim = std::size_t(c.kept.v_dim);
  // NOTE: turning a query by an angle is turning the key by the angle back.
  const idx in_cache = std::min<idx>(w.q_position, c.kept.sinks + c.kept.width - 1);
  std::vector<std::vector<double>> turned;
  turned.reserve(rows.positions.size());
  std::vector<oracle_key> keys;
  for (std::size_t i = 0; i < rows.positions.size(); ++i) {
    std::span<const double> k = std::span(rows.k).subspan(i * k_dim, k_dim);
    if (c.means.rope_base > 0 && rows.positions[i] < c.kept.sinks && in_cache < w.q_position) {
      turned.emplace_back(k.begin(), k.end());
      turn(turned.back(), w.q_position - in_cache, c.kept.k_dim, c.means.rope_base, false);
      k = turned.back();
    }
    keys.push_back({k, std::span(rows.v).subspan(i * v_dim, v_dim), rows.positions[i]});
  }
  const std::vector<double> query(q.begin(), q.end());
  const double scale = c.shape.scale != 0 ? double(c.shape.scale) : 1 / std::sqrt(double(k_dim));
  oracle_state state = oracle(query, keys, scale, v_dim, asked{c, w});
  if (c.means.sink) add_sink(state, c.means.sink(w.q_head));
  return state;
}

// Two numbers, of which the first is not the second.
std::string unlike(const std::string& where, double got, double want) {
  std::ostringstream text;
  text.precision(7);
  text << where << ": " << got << ", not " << want;
  return text.str();
}

// What else is allowed where keys are codes of 8 bits and less: queries are rounded to 16-bit floats for them, so that
// scores are off by up to 2^-12 of the sum of their products' magnitudes, of which the log-sum-exp tells the size.
bool rounds_queries(const kept_by& kept) {
  return kept.within > 1e-3;
}

// Where one row is wrong.
std::string wrong_row(const attention_case& c, const oracle_state& want, std::span<const float> out, float lse,
                      bool of_many) {
  const double within = of_many ? c.kept.within_of_many : c.kept.within;
  double largest = 0;
  for (const double x : want.out) largest = std::max(largest, std::isfinite(x) ? std::abs(x) : 0);
  for (std::size_t d = 0; d < want.out.size(); ++d) {
    const double g = double(out[d]), w = want.out[d];
    const double allowed = (rounds_queries(c.kept) ? 2 : 1) * within * largest + c.rounding * std::abs(w);
    const bool same = std::isnan(w) ? std::isnan(g) : std::abs(g - w) <= allowed;
    if (!same)
      return unlike("number " + std::to_string(d), g, w) + " (the row's largest is " + std::to_string(largest) + ")";
  }
  const double g = double(lse), w = want.lse;
  const double allowed = (of_many ? c.kept.lse_within_of_many : c.kept.lse_within) + (rounds_queries(c.kept) ? 1e-3 + 2e-4 * std::abs(w) : 0);
  const bool same = std::isnan(w) ? std::isnan(g) : std::isinf(w) ? g == w : std::abs(g - w) <= allowed;
  return same ? "" : unlike("log-sum-exp", g, w);
}

// One row of so many is looked at, so that the oracle takes a fraction of a second.
idx rows_apart(const attention_case& c) {
  double cost = 0;
  for (const kvilt::step_item& item : c.items)
    cost += double(item.queries) * c.shape.q_heads() * double(item.n.after) * (c.kept.k_dim + c.kept.v_dim);
  return cost < 2e7 ? 1 : 1 + idx(cost / 2e7);
}

}  // namespace

std::string differences(const attention_case& c, const std::vector<float>& out, const std::vector<float>& lse) {
  const int heads = c.shape.q_heads(), group = c.shape.group;
  const idx apart = rows_apart(c);
  std::string first;
  idx looked_at = 0, wrong = 0;
  for (std::size_t i = 0; i < c.items.size(); ++i) {
    const kvilt::step_item& item = c.items[i];
    for (int kv_head = 0; kv_head < c.shape.kv_heads && item.queries > 0; ++kv_head) {
      const kept_rows rows = c.rows(item, kv_head);
      for (int j = 0; j < item.queries; ++j)
        for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          const std::size_t row = std::size_t((item.q_row + j) * heads + head);
          if (mixed({row}) % std::uint64_t(apart) != 0) continue;
          ++looked_at;
          const kvilt::where w{item.sequence, head, kv_head, j, item.n.after - item.queries + j, 0};
          const std::size_t k_dim = std::size_t(c.kept.k_dim), v_dim = std::size_t(c.kept.v_dim);
          const oracle_state want = answer_for(c, rows, w, std::span(c.q).subspan(row * k_dim, k_dim));
          const std::string here = wrong_row(c, want, std::span(out).subspan(row * v_dim, v_dim), lse[row],
                                             c.kept.within_of_many > 0 && item.queries * group > 128);
          if (!here.empty() && ++wrong == 1)
            first = "sequence " + std::to_string(item.sequence) + " (item " + std::to_string(i) + " of " +
                    std::to_string(c.items.size()) + ", " + std::to_string(item.n.after) + " tokens), query " +
                    std::to_string(j) + " of " + std::to_string(item.queries) + ", head " + std::to_string(head) +
                    ", " + here;
        }
    }
  }
  if (wrong == 0) return {};
  return c.name + ": " + first + "; " + std::to_string(wrong) + " of " + std::to_string(looked_at) +
         " rows looked at are wrong";
}

}  // namespace support
