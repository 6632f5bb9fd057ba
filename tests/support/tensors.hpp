#pragma once

#include "support/oracle.hpp"
#include "support/random.hpp"

#include <kvilt/kvilt.hpp>

#include <deque>
#include <vector>

namespace support {

using kvilt::host;
using kvilt::idx;

// [tokens][heads][dim], side by side.
template <class T = float>
struct tensor {
  int heads = 0, dim = 0;
  std::vector<T> data;

  tensor(idx tokens, int h, int d) : heads(h), dim(d), data(std::size_t(tokens * h * d)) {}

  idx tokens() const { return idx(data.size()) / (heads * dim); }
  kvilt::rows<T> rows() { return kvilt::packed_rows(data.data(), heads, dim); }
  kvilt::rows<const T> rows() const { return kvilt::packed_rows(data.data(), heads, dim); }
  std::span<const T> row(idx token, int head) const {
    return std::span(data).subspan(std::size_t((token * heads + head) * dim), std::size_t(dim));
  }
};

inline tensor<float> random_tensor(std::uint64_t seed, idx tokens, int heads, int dim) {
  tensor<float> t(tokens, heads, dim);
  normal_numbers numbers(mixed({seed}));
  for (float& x : t.data) x = numbers.next();
  return t;
}

inline std::vector<double> widened(std::span<const float> row) {
  return {row.begin(), row.end()};
}

// Outputs and log-sum-exps of the queries of a step.
template <class Out = float>
struct answer {
  tensor<Out> out;
  std::vector<float> lse;

  answer(idx queries, int heads, int dim)
      : out(queries, heads, dim), lse(std::size_t(queries * heads), std::numeric_limits<float>::quiet_NaN()) {}
  kvilt::natural_lse lse_rows() { return {lse.data(), out.heads}; }
  float lse_of(idx query, int head) const { return lse[std::size_t(query * out.heads + head)]; }
};

// A step over `caches` of any owner or none: sequences 0, 1, ... with these lengths.
class planned_step {
 public:
  planned_step(const host& exec, std::vector<idx> before, std::vector<int> new_tokens, std::vector<int> queries,
               int k_dim, int v_dim, std::vector<idx> positions = {})
      : workspace_(kvilt::workspace_bytes(exec, int(before.size()), k_dim, v_dim), 0xff),
        positions_(std::move(positions)) {
    for (int i = 0; i < int(before.size()); ++i) sequences_.push_back(i);
    step_ = kvilt::plan(exec, {sequences_, before, new_tokens, queries, positions_}, workspace_);
  }
  operator const kvilt::step&() const { return step_; }
  const kvilt::step* operator->() const { return &step_; }

 private:
  std::vector<unsigned char> workspace_;
  std::vector<int> sequences_;
  std::vector<idx> positions_;
  kvilt::step step_;
};

// One sequence of 32-bit rows in a cache, and the same rows in plain sight.
class text {
 public:
  text(idx tokens, int heads, int k_dim, int v_dim, std::uint64_t seed = 1)
      : k(random_tensor(seed, tokens, heads, k_dim)),
        v(random_tensor(seed + 1, tokens, heads, v_dim)),
        owner_({.layers = 1, .kv_heads = heads, .tokens = tokens, .max_step = 1}, kvilt::host_memory(),
               policy(kvilt::fp32<>(k_dim), kvilt::fp32<>(v_dim))) {
    kvilt::append(host(), view(), planned_step(host(), {0}, {int(tokens)}, {}, k_dim, v_dim), k.rows(), v.rows());
  }

  using policy = kvilt::policy<kvilt::contiguous, kvilt::fp32<>>;
  kvilt::cache<policy>::view_type view() const { return owner_.view(0); }

  template <class Attention, class Q>
  answer<> attend(const Attention& attention, const kvilt::step& s, const tensor<Q>& q) const {
    answer<> a(s.q_rows, q.heads, v.dim);
    attention(host(), view(), s, q.rows(), a.out.rows(), a.lse_rows());
    return a;
  }

  // Every key and value of one KV head.
  std::vector<oracle_key> keys(int head) const {
    std::vector<oracle_key> all;
    for (idx t = 0; t < k.tokens(); ++t) {
      kept_.push_back({widened(k.row(t, head)), widened(v.row(t, head))});
      all.push_back({kept_.back().first, kept_.back().second, t});
    }
    return all;
  }

  tensor<float> k, v;

 private:
  kvilt::cache<policy> owner_;
  mutable std::deque<std::pair<std::vector<double>, std::vector<double>>> kept_;
};

// Holds every answer against the oracle's: `variant(query, position, head)` says in double precision what is meant.
template <class Variant>
std::string wrong_answers(const text& t, const kvilt::step_item& item, const tensor<float>& q, const answer<>& got,
                          double scale, Variant variant) {
  const int group = q.heads / t.k.heads;
  for (int i = 0; i < item.queries; ++i)
    for (int head = 0; head < q.heads; ++head) {
      const std::vector<oracle_key> all = t.keys(head / group);
      const std::vector<oracle_key> present(all.begin(), all.begin() + std::ptrdiff_t(item.n.after));
      const oracle_state want = oracle(widened(q.row(item.q_row + i, head)), present, scale, std::size_t(t.v.dim),
                                       variant(i, item.query_position(i), head));
      const float lse = got.lse_of(item.q_row + i, head);
      std::string wrong = difference(got.out.row(item.q_row + i, head), want.out);
      if (wrong.empty()) wrong = difference(std::span(&lse, 1), std::vector<double>{want.lse});
      if (!wrong.empty()) return "query " + std::to_string(i) + ", head " + std::to_string(head) + ": " + wrong;
    }
  return {};
}

}  // namespace support
