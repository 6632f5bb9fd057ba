#pragma once

#include "../kept_text.hpp"

#include <kvilt/core/types.hpp>

namespace example {

// One sequence in a cache of some policy in device memory, the policy's type erased. What it launches is in the stream
// that it was opened with.
class cuda_session : public kept_text {
 public:
  // Plans a step of `tokens` more, at most `bound`: where every other step with that bound was planned, so that one graph
  // serves them all.
  virtual void begin(int tokens, int bound) = 0;

  // Launches one layer of the step, or adds it to a graph that is captured: append, which applies RoPE to q in place,
  // then attention. Rows are those of `bound` tokens.
  virtual void attend(int layer, const kvilt::rows<float>& q, const kvilt::rows<const float>& k,
                      const kvilt::rows<const float>& v, const kvilt::rows<float>& out) = 0;
};

}  // namespace example
