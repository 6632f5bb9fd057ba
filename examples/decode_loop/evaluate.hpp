#pragma once

#include "metrics.hpp"
#include "reader.hpp"

#include <kvilt/core/executor.hpp>

#include <functional>
#include <span>
#include <vector>

namespace example {

// Teacher forcing of several caches side by side, the first of which is the reference.
class evaluation {
 public:
  // Predictions from here on are scored: beyond every policy's 16-bit sinks and tail.
  static constexpr int first_scored = 128;

  // Scores are computed on `exec`. The reader outlives the evaluation.
  evaluation(reader& caches, const kvilt::host& exec) : caches_(caches), exec_(exec), sheets_(caches.caches()) {}

  // Reads and scores one text, from empty caches: all of it but the last token, which is only predicted. Calls `tick`
  // `ticks(tokens.size())` times.
  void read(std::span<const int> tokens, const std::function<void()>& tick);

  // How often a text of this many tokens ticks.
  long ticks(long tokens) const;

  quality result(std::size_t cache, const band& of = {}) const { return sheets_[cache].summary(of); }

 private:
  void score(std::span<const int> tokens, int first, int count);
  void describe_reference(int rows);

  reader& caches_;
  kvilt::host exec_;
  std::vector<score_sheet> sheets_;

  std::vector<float> reference_logits_;      // [block][vocab]
  std::vector<float> probabilities_;         // [block][vocab]
  std::vector<distribution> distributions_;  // [block]
  std::vector<float> logits_;                // [block][vocab]
  std::vector<position_score> scores_;       // [block]
};

}  // namespace example
