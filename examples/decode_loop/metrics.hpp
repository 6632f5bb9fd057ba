#pragma once

#include <limits>
#include <optional>
#include <vector>

namespace example {

// The softmax of one row of logits, short of the numbers themselves.
struct distribution {
  double log_sum = 0;  // ln p(token) = logit - log_sum
  int top = 0;         // the likeliest token
};

// logits [vocab]
distribution distribution_of(const float* logits, int vocab);

// Writes the probabilities [vocab].
void probabilities_of(const float* logits, const distribution& d, int vocab, float* out);

// How a policy's prediction at one position compares with the reference's.
struct position_score {
  double divergence = 0;       // KL(reference || policy), in nats
  double surprise = 0;         // -ln p(the text's next token)
  double surprise_change = 0;  // against the reference
  bool same_top = false;
};

// One row of the reference: logits and probabilities [vocab].
struct reference_row {
  const float* logits;
  const float* probabilities;
  distribution shape;
};

position_score score_position(const reference_row& reference, const float* logits, int vocab, int next_token);

// What a policy costs, over all positions scored.
struct quality {
  int positions = 0;
  double kld_mean = 0;
  double kld_se = 0;     // its standard error
  double kld_p999 = 0;   // the 99.9th percentile
  double top1 = 0;       // percent of positions where the likeliest token is the reference's
  double dlnppl = 0;     // paired change of ln perplexity
  double dlnppl_se = 0;  // its standard error
  double perplexity = 0;
  std::optional<double> late_perplexity;  // from `late_from` on
};

// Positions [first, last) of a text.
struct band {
  int first = 0;
  int last = std::numeric_limits<int>::max();
};

// Gathers the scores of a policy's positions.
class score_sheet {
 public:
  static constexpr int late_from = 512;

  void add(int position, const position_score& score) { scores_.push_back({position, score}); }

  // Of the positions of a band.
  quality summary(const band& of = {}) const;

 private:
  struct line {
    int position;
    position_score score;
  };

  std::vector<line> scores_;
};

}  // namespace example
