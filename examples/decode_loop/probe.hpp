#pragma once

#include "probe_text.hpp"
#include "reader.hpp"

#include <kvilt/core/executor.hpp>

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

namespace example {

// How many of the answers' tokens, each behind the right ones before it, a cache has the model predict.
struct probe_result {
  int answers = 0;
  int tokens = 0;
  double right_tokens = 0;     // percent: the likeliest one is the answer's
  double right_answers = 0;    // percent: all of an answer's tokens are right
  std::optional<double> kept;  // percent of the tokens that the first cache has right; none where it has none
  double log_probability = 0;  // of the answers' tokens, the mean, in nats
};

// Several caches that are asked for what they have read, side by side. The first keeps all of it: what the model cannot
// say behind that one no other has lost.
class probing {
 public:
  // Scores are computed on `exec`. The reader outlives the probing.
  probing(reader& caches, const kvilt::host& exec) : caches_(caches), exec_(exec), lines_(caches.caches()) {}

  // Reads and scores one text, from empty caches. A block ends where the questions begin, so that what they ask for has
  // been chosen, or lost, without them. Calls `tick` `ticks(text)` times.
  void read(const probe_text& text, const std::function<void()>& tick);

  // How often a text ticks.
  long ticks(const probe_text& text) const;

  // Over all texts, at one depth or at all.
  probe_result result(std::size_t cache, std::optional<double> depth = {}) const;

 private:
  // One token of an answer.
  struct line {
    double depth = 0;
    int answer = 0;  // its number, over all texts
    bool right = false;
    double log_probability = 0;
  };

  void score(const probe_text& text, std::size_t answer, int first, int count);

  reader& caches_;
  kvilt::host exec_;
  std::vector<std::vector<line>> lines_;  // of each cache, of the same tokens in the same order
  int answers_ = 0;                       // of the texts before
  std::vector<float> logits_;             // [rows][vocab]
};

}  // namespace example
