#include "evaluate.hpp"

#include <algorithm>
#include <cstddef>

namespace example {
namespace {

std::size_t elements(std::size_t a, int b) {
  return a * static_cast<std::size_t>(b);
}

}  // namespace

long evaluation::ticks(long tokens) const {
  return (tokens - 1 + reader::block - 1) / reader::block * caches_.ticks();
}

void evaluation::read(std::span<const int> tokens, const std::function<void()>& tick) {
  caches_.restart();
  const int size = static_cast<int>(tokens.size()) - 1;
  for (int first = 0; first < size; first += reader::block) {
    const int count = std::min(reader::block, size - first);
    caches_.read(tokens.subspan(std::size_t(first), std::size_t(count)), tick);
    score(tokens, first, count);
  }
}

void evaluation::score(std::span<const int> tokens, int first, int count) {
  const int vocab = caches_.config().vocab;
  const int begin = std::max(first, first_scored);
  const int rows = first + count - begin;
  if (rows <= 0) return;
  for (auto* buffer : {&reference_logits_, &probabilities_, &logits_})
    buffer->resize(elements(std::size_t(rows), vocab));
  scores_.resize(std::size_t(rows));
  for (std::size_t i = 0; i < sheets_.size(); ++i) {
    std::vector<float>& logits = i == 0 ? reference_logits_ : logits_;
    caches_.logits(i, begin - first, rows, logits.data());
    if (i == 0) describe_reference(rows);
    exec_.for_each(rows, [&](kvilt::idx r, int) {
      const auto nth = std::size_t(r);
      const std::size_t at = elements(nth, vocab);
      const reference_row reference{&reference_logits_[at], &probabilities_[at], distributions_[nth]};
      scores_[nth] = score_position(reference, &logits[at], vocab, tokens[std::size_t(begin + 1) + nth]);
    });
    for (int r = 0; r < rows; ++r) sheets_[i].add(begin + r, scores_[std::size_t(r)]);
  }
}

void evaluation::describe_reference(int rows) {
  const int vocab = caches_.config().vocab;
  distributions_.resize(std::size_t(rows));
  exec_.for_each(rows, [&](kvilt::idx r, int) {
    const auto nth = std::size_t(r);
    const float* logits = &reference_logits_[elements(nth, vocab)];
    distributions_[nth] = distribution_of(logits, vocab);
    probabilities_of(logits, distributions_[nth], vocab, &probabilities_[elements(nth, vocab)]);
  });
}

}  // namespace example
