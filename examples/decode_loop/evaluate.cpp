#include "evaluate.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace example {
namespace {

std::size_t elements(std::size_t a, int b) {
  return a * static_cast<std::size_t>(b);
}

}  // namespace

evaluation::evaluation(transformer& model, const kvilt::host& exec, std::vector<std::unique_ptr<session>> caches)
    : model_(model), exec_(exec), caches_(std::move(caches)), sheets_(caches_.size()) {}

long evaluation::ticks(long tokens) const {
  return (tokens - 1 + block - 1) / block * static_cast<long>(model_.config().layers.size());
}

void evaluation::read(std::span<const int> tokens, const std::function<void()>& tick) {
  for (const auto& cache : caches_) cache->restart();
  const int size = static_cast<int>(tokens.size()) - 1;
  for (int first = 0; first < size; first += block) {
    const int count = std::min(block, size - first);
    pass(tokens.subspan(std::size_t(first), std::size_t(count)), tick);
    score(tokens, first, count);
  }
}

void evaluation::pass(std::span<const int> part, const std::function<void()>& tick) {
  const model_config& c = model_.config();
  const int count = static_cast<int>(part.size());
  repeated_.clear();
  for (const auto& cache : caches_) {
    repeated_.insert(repeated_.end(), part.begin(), part.end());
    cache->begin(count, 1);
  }
  const std::size_t q_share = elements(part.size(), c.q_heads * c.head_dim);
  const std::size_t kv_share = elements(part.size(), c.kv_heads * c.head_dim);
  const auto attention = [&](int layer, int, float* q, float* k, const float* v, float* out) {
    exec_.for_each(kvilt::idx(caches_.size()), [&](kvilt::idx i, int) {
      const auto nth = std::size_t(i);
      caches_[nth]->attend(kvilt::host(), layer, q + nth * q_share, k + nth * kv_share, v + nth * kv_share,
                           out + nth * q_share);
    });
    tick();
  };
  model_.forward(repeated_, attention, hidden_);
  for (const auto& cache : caches_) cache->commit();
}

void evaluation::score(std::span<const int> tokens, int first, int count) {
  const model_config& c = model_.config();
  const int begin = std::max(first, first_scored);
  const int rows = first + count - begin;
  if (rows <= 0) return;
  for (auto* buffer : {&reference_logits_, &probabilities_, &logits_})
    buffer->resize(elements(std::size_t(rows), c.vocab));
  scores_.resize(std::size_t(rows));
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    const std::size_t row = i * std::size_t(count) + std::size_t(begin - first);
    std::vector<float>& logits = i == 0 ? reference_logits_ : logits_;
    model_.logits(hidden_.data() + elements(row, c.hidden), rows, logits.data());
    if (i == 0) describe_reference(rows);
    exec_.for_each(rows, [&](kvilt::idx r, int) {
      const auto nth = std::size_t(r);
      const std::size_t at = elements(nth, c.vocab);
      const reference_row reference{&reference_logits_[at], &probabilities_[at], distributions_[nth]};
      scores_[nth] = score_position(reference, &logits[at], c.vocab, tokens[std::size_t(begin + 1) + nth]);
    });
    for (int r = 0; r < rows; ++r) sheets_[i].add(begin + r, scores_[std::size_t(r)]);
  }
}

void evaluation::describe_reference(int rows) {
  const int vocab = model_.config().vocab;
  distributions_.resize(std::size_t(rows));
  exec_.for_each(rows, [&](kvilt::idx r, int) {
    const auto nth = std::size_t(r);
    const float* logits = &reference_logits_[elements(nth, vocab)];
    distributions_[nth] = distribution_of(logits, vocab);
    probabilities_of(logits, distributions_[nth], vocab, &probabilities_[elements(nth, vocab)]);
  });
}

}  // namespace example
