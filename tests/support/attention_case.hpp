#pragma once

#include "support/oracle.hpp"
#include "support/random.hpp"

#include <kvilt/attention/variant.hpp>
#include <kvilt/cache/step.hpp>
#include <kvilt/cache/view.hpp>
#include <kvilt/position/rope.hpp>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

// One call of attention, in numbers that no kernel has touched: what it was asked, and what it should say.
namespace support {

using kvilt::idx;

// One sequence of a batch: tokens before the step, new ones, and queries (-1: as many as new tokens).
struct prompt {
  idx before = 0;
  int fresh = 0;
  int queries = -1;

  bool padding() const { return before < 0; }
  idx after() const { return before + fresh; }
  int asked() const { return padding() ? 0 : queries < 0 ? fresh : queries; }
};
inline constexpr prompt padded{-1, 0, 0};

// What a step knows of it, without a tail.
inline kvilt::step_item item_of(const prompt& p, int sequence, idx kv_row, idx q_row) {
  if (p.padding()) return {-1, 0, 0, kv_row, q_row, {}};
  return {sequence, p.fresh, p.asked(), kv_row, q_row, {p.before, p.after(), p.before, p.after()}};
}

// A call's shape, all of which is known at run time only.
struct attend_shape {
  std::string what;
  int kv_heads = 1, group = 1;
  std::vector<prompt> batch;
  float scale = 0;                // 0: 1 / sqrt(k_dim)
  int head_gap = 0;               // numbers between the rows of Q and of the output; nobody may touch them
  int token_gap = 0;              // and between their tokens
  bool lengths_on_device = true;  // planned there from arrays, where the cache has no 16-bit tail

  int q_heads() const { return kv_heads * group; }
};

// What a policy's rows are kept by, as the oracle needs it.
struct kept_by {
  std::string name;
  int k_dim = 0, v_dim = 0;
  idx page = 64;      // rows of one, where edges lie
  idx width = 0;      // of the window; 0: there is none
  int sinks = 0;      // that the window does not hide
  bool tail = false;  // lengths are the ledger's affair
  double within = 0;  // of the largest number of an output row
  double lse_within = 1e-3;
  // The same of items of more than 128 query rows a KV head, where weights and queries are single 16-bit numbers on a
  // device; 0: as all.
  double within_of_many = 0, lse_within_of_many = 0;
};

// Shapes that meet, over some kernels' numbers, all group sizes, head counts, batch sizes, counts of queries, and lengths
// around every edge. `own_queries`: every query is one of the step's new tokens.
std::vector<attend_shape> shapes_for(int number, const kept_by& kept, bool own_queries = false);

// What a variant means, in double precision.
struct meaning {
  std::function<bool(const kvilt::where&)> keep = [](const kvilt::where&) { return true; };
  std::function<double(const kvilt::where&, double)> score = [](const kvilt::where&, double s) { return s; };
  std::function<double(int)> sink;  // of a query head; none where it is empty
  double rope_base = 0;             // sinks and window count as one text, turned half-split; 0: positions in the text
};
meaning means_causal();

// Keys and values of one sequence and KV head, as the cache's bytes say them.
struct kept_rows {
  std::vector<double> k, v;  // [positions][k_dim], [positions][v_dim]
  std::vector<idx> positions;
};

struct attention_case {
  std::string name;
  kept_by kept;
  attend_shape shape;
  std::vector<kvilt::step_item> items;
  std::vector<float> q;  // [q_rows][q heads][k_dim]
  double rounding = 0;   // of an output's type, of the number itself
  meaning means;
  std::function<kept_rows(const kvilt::step_item&, int kv_head)> rows;

  idx q_rows() const;
};

// Where outputs [q_rows][q heads][v_dim] and log-sum-exps [q_rows][q heads] are not the oracle's, in words: policy,
// shape, sequence, row, both values; empty if nowhere. Of large shapes every n-th row is looked at.
std::string differences(const attention_case& c, const std::vector<float>& out, const std::vector<float>& lse);

// The rows of one KV head that a view keeps of an item.
template <kvilt::host_view View>
kept_rows rows_of(const View& view, const kvilt::step_item& item, int kv_head) {
  kept_rows all;
  view.each([&](const auto& seg) {
    const auto add = [](const auto& format, kvilt::row_ref r, std::vector<double>& to) {
      std::vector<float> row(std::size_t(format.dim()));
      kvilt::decode_row(format, r, row.data());
      const std::size_t first = to.size();
      to.insert(to.end(), row.begin(), row.end());
      using rotation = kvilt::rotation_of<std::remove_cvref_t<decltype(format)>>;
      if constexpr (!std::is_same_v<rotation, kvilt::no_rotation>) walsh(std::span(to).subspan(first));
    };
    for (idx i = 0; i < seg.retention.count(item.n, item.sequence, kv_head); ++i) {
      const kvilt::kept_row kept = seg.retention.at(item.n, item.sequence, kv_head, i);
      const kvilt::place p = seg.layout.locate(item.sequence, kv_head, kept.slot);
      add(seg.k, seg.k_row(p, kv_head), all.k);
      add(seg.v, seg.v_row(p, kv_head), all.v);
      all.positions.push_back(kept.position);
    }
  });
  return all;
}

// Relative to an output row's largest number. Weights are multiplied as 16-bit floats, or as pairs of them: 2^-11 or
// better of each, and their errors hardly add up. Codes of 8 bits and less are widened by arithmetic of their own; rows that are
// decoded first are pairs of bfloat16 all the way.
template <class View>
double within_on_device(const View& view) {
  double most = 0;
  view.each([&](const auto& seg) {
    using segment = std::remove_cvref_t<decltype(seg)>;
    const auto one = [&](auto format) {
      using F = decltype(format);
      double within = 5e-4;
      if constexpr (kvilt::plain_format<F>) {
        const int bits = kvilt::detail::bits_of(F::plain.codes);
        within = bits == 32 ? 5e-4 : bits == 16 ? 1e-3 : 2e-3;
      }
      if (within > most) most = within;
    };
    one(typename segment::k_format(seg.k)), one(typename segment::v_format(seg.v));
  });
  return most;
}

template <class Format>
consteval bool is_bf16() {
  if constexpr (kvilt::plain_format<Format>)
    return Format::plain.codes == kvilt::code_kind::bf16;
  else
    return false;
}
// The same of items of many rows, where weights are single numbers of V's kind and queries of K's: 2^-9 of each where that
// is bfloat16. Scores of queries that were given as others are off by as much of their products.
template <class Q, class View>
double many_within_on_device(const View& view) {
  double within = 3e-3;
  view.each([&](const auto& seg) {
    using segment = std::remove_cvref_t<decltype(seg)>;
    if (is_bf16<typename segment::k_format>() || is_bf16<typename segment::v_format>()) within = std::max(within, 6e-3);
    if (is_bf16<typename segment::k_format>() && !std::is_same_v<Q, kvilt::bfloat16>) within = 2e-2;
  });
  return within;
}

}  // namespace support
