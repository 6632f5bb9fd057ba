#pragma once

namespace engine {

/// A sequence of two tokens, whose values are these all over, through a pool of the engine's own on the GPU: what
/// attention says to each of the two. Keys are alike, so the second one gets the mean.
struct answers {
  float first = 0, second = 0;
};
answers decode(float first, float second);

}  // namespace engine
