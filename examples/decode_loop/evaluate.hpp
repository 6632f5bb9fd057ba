#pragma once

#include "metrics.hpp"
#include "session.hpp"
#include "transformer.hpp"

#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace example {

// Teacher forcing of several caches side by side, the first of which is the reference.
//
// The model reads a text in blocks. A block runs through a layer for all caches at once, so that projections are large
// matrix products; in attention each cache takes its tokens one by one, each a step of its own, so that the query of
// token t reads the cache just as decoding would leave it.
class evaluation {
 public:
  // Predictions from here on are scored: beyond every policy's 16-bit sinks and tail.
  static constexpr int first_scored = 128;

  evaluation(transformer& model, const kvilt::host& exec, std::vector<std::unique_ptr<session>> caches);

  // Reads and scores one text, from empty caches: all of it but the last token, which is only predicted. Calls `tick`
  // once for each layer of each block.
  void read(std::span<const int> tokens, const std::function<void()>& tick);

  // How often a text of this many tokens ticks.
  long ticks(long tokens) const;

  quality result(std::size_t cache, const band& of = {}) const { return sheets_[cache].summary(of); }
  session& cache(std::size_t i) { return *caches_[i]; }

 private:
  static constexpr int block = 128;  // tokens

  void pass(std::span<const int> part, const std::function<void()>& tick);
  void score(std::span<const int> tokens, int first, int count);
  void describe_reference(int rows);

  transformer& model_;
  kvilt::host exec_;
  std::vector<std::unique_ptr<session>> caches_;
  std::vector<score_sheet> sheets_;

  std::vector<int> repeated_;                // [caches][block]
  std::vector<float> hidden_;                // [caches][block][hidden]
  std::vector<float> reference_logits_;      // [block][vocab]
  std::vector<float> probabilities_;         // [block][vocab]
  std::vector<distribution> distributions_;  // [block]
  std::vector<float> logits_;                // [block][vocab]
  std::vector<position_score> scores_;       // [block]
};

}  // namespace example
