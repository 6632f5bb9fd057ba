#include "probe.hpp"

#include "metrics.hpp"

#include <algorithm>
#include <span>

namespace example {
namespace {

// The block's tokens from `first` on: none stands both before the questions and among them.
int block_at(const probe_text& text, int first) {
  const int end = first < text.asked_from ? text.asked_from : static_cast<int>(text.tokens.size());
  return std::min(reader::block, end - first);
}

}  // namespace

long probing::ticks(const probe_text& text) const {
  long blocks = 0;
  for (int first = 0; first < static_cast<int>(text.tokens.size()); first += block_at(text, first)) ++blocks;
  return blocks * caches_.ticks();
}

void probing::read(const probe_text& text, const std::function<void()>& tick) {
  caches_.restart();
  for (int first = 0, count; first < static_cast<int>(text.tokens.size()); first += count) {
    count = block_at(text, first);
    caches_.read(std::span(text.tokens).subspan(std::size_t(first), std::size_t(count)), tick);
    for (std::size_t i = 0; i < text.answers.size(); ++i) score(text, i, first, count);
  }
  answers_ += static_cast<int>(text.answers.size());
}

// What of an answer is predicted in the block of tokens [first, first + count): a token behind the one before it.
void probing::score(const probe_text& text, std::size_t answer, int first, int count) {
  const probe_answer& a = text.answers[answer];
  const int begin = std::max(a.first - 1, first), rows = std::min(a.first - 1 + a.count, first + count) - begin;
  if (rows <= 0) return;
  const auto vocab = std::size_t(caches_.config().vocab);
  logits_.resize(std::size_t(rows) * vocab);
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    caches_.logits(i, begin - first, rows, logits_.data());
    const std::size_t before = lines_[i].size();
    lines_[i].resize(before + std::size_t(rows), {a.depth, answers_ + static_cast<int>(answer)});
    exec_.for_each(rows, [&](kvilt::idx r, int) {
      const auto nth = std::size_t(r);
      const float* logits = &logits_[nth * vocab];
      const distribution d = distribution_of(logits, static_cast<int>(vocab));
      const int wanted = text.tokens[std::size_t(begin + 1) + nth];
      line& l = lines_[i][before + nth];
      l.right = d.top == wanted;
      l.log_probability = logits[wanted] - d.log_sum;
    });
  }
}

probe_result probing::result(std::size_t cache, std::optional<double> depth) const {
  probe_result r;
  const std::vector<line>&lines = lines_[cache], &whole = lines_.front();
  int right = 0, whole_right = 0, both_right = 0, right_answers = 0;
  for (std::size_t first = 0, last; first < lines.size(); first = last) {
    bool all = true;
    for (last = first; last < lines.size() && lines[last].answer == lines[first].answer; ++last)
      all = all && lines[last].right;
    if (depth && lines[first].depth != *depth) continue;
    ++r.answers;
    right_answers += all;
    for (std::size_t i = first; i < last; ++i) {
      ++r.tokens;
      right += lines[i].right;
      whole_right += whole[i].right;
      both_right += lines[i].right && whole[i].right;
      r.log_probability += lines[i].log_probability;
    }
  }
  if (r.tokens == 0) return r;
  r.right_tokens = 100.0 * right / r.tokens;
  r.right_answers = 100.0 * right_answers / r.answers;
  if (whole_right > 0) r.kept = 100.0 * both_right / whole_right;
  r.log_probability /= r.tokens;
  return r;
}

}  // namespace example
