#include "check.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace example {
namespace {

/// Rows of some of the heads of every token.
kvilt::rows<bfloat16> heads(std::vector<bfloat16>& tokens, int first, int count) {
  return {tokens.data() + first * model::dim, model::heads * model::dim, model::dim, count, model::dim};
}

}  // namespace

host_check::host_check(const engine_shape& shape, const batch_lists& batch)
    : shape_(shape),
      batch_(batch),
      sequences_(batch.sequences(), batch.sequences() + batch.seats),
      new_tokens_(batch.new_tokens(), batch.new_tokens() + batch.seats),
      length_before_(batch.length_before(), batch.length_before() + batch.seats),
      nothing_(std::size_t(batch.seats), 0),
      workspace_(kvilt::workspace_bytes(host_, batch.seats, model::dim, model::dim)) {
  for (std::size_t seat = 0; seat < sequences_.size(); ++seat)
    lengths_.push_back(int(length_before_[seat]) + new_tokens_[seat]);
}

auto host_check::view(std::vector<bfloat16>& pool, int layer) const {
  return view_of<kvilt::memory_space::host>(pool.data(), shape_, layer, batch_.table());
}

// Of tokens [first, first + count) of every seat: [tokens][heads][dim].
std::vector<bfloat16> host_check::rows(int layer, const std::vector<idx>& first, const std::vector<int>& counts) const {
  std::vector<bfloat16> to;
  for (int seat = 0; seat < batch_.seats; ++seat)
    for (int token = 0; token < counts[std::size_t(seat)]; ++token)
      for (int i = 0; i < model::heads * model::dim; ++i)
        kvilt::store(to.emplace_back(), number_of(batch_.texts()[seat], layer, first[std::size_t(seat)] + token, i));
  return to;
}

kvilt::step host_check::planned(const std::vector<idx>& first, const std::vector<int>& counts) {
  return plan(host_, {.sequences = sequences_, .length_before = first, .new_tokens = counts}, workspace_);
}

std::vector<bfloat16> host_check::filled_pool() {
  std::vector<bfloat16> pool(std::size_t(model::layers * shape_.layer_numbers()), bfloat16{0xffff});  // NaN
  const kvilt::step texts = planned(nothing_, lengths_);
  for (int layer = 0; layer < model::layers; ++layer) {
    std::vector<bfloat16> tokens = rows(layer, nothing_, lengths_);
    append(host_, view(pool, layer), texts, heads(tokens, model::q_heads, model::kv_heads),
           heads(tokens, model::q_heads + model::kv_heads, model::kv_heads), rope_);
  }
  return pool;
}

double host_check::difference(std::vector<bfloat16>& pool, const std::vector<bfloat16>& out) {
  const kvilt::step last = planned(length_before_, new_tokens_);
  const kvilt::attention attend{kvilt::causal{}};
  std::vector<float> answers(std::size_t(last.q_rows) * model::q_heads * model::dim);
  double largest = 0;
  for (int layer = 0; layer < model::layers; ++layer) {
    std::vector<bfloat16> tokens = rows(layer, length_before_, new_tokens_);
    const auto q = heads(tokens, 0, model::q_heads);
    kvilt::rotate_queries(host_, last, q, model::dim, rope_);
    attend(host_, view(pool, layer), last, q, kvilt::packed_rows(answers.data(), model::q_heads, model::dim));
    const bfloat16* device = out.data() + layer * shape_.rows() * model::q_heads * model::dim;
    for (const float x : answers) {
      const double apart = std::abs(double(x) - double(kvilt::load(*device++)));
      largest = std::isnan(apart) ? std::numeric_limits<double>::infinity() : std::max(largest, apart);
    }
  }
  return largest;
}

}  // namespace example
