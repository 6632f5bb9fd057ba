#include "host_decoder.hpp"

#include <kvilt/cache/cache.hpp>

#include <algorithm>
#include <array>
#include <cstddef>

namespace example {

int host_decoder::feed(std::span<const int> tokens) {
  kvilt::in_chunks(kvilt::idx(tokens.size()), cache_.max_step(), [&](kvilt::idx first, int count) {
    run(tokens.subspan(std::size_t(first), std::size_t(count)));
    cache_.commit();
  });
  return predict();
}

int host_decoder::peek(int token) {
  run(std::array{token});
  cache_.cancel();
  return predict();
}

void host_decoder::run(std::span<const int> tokens) {
  const auto attention = [this](int layer, int, float* q, float* k, const float* v, float* out) {
    cache_.attend(exec_, layer, q, k, v, out);
  };
  const int count = static_cast<int>(tokens.size());
  cache_.begin(count, count);
  model_.forward(tokens, attention, hidden_, how_);
}

int host_decoder::predict() {
  const model_config& c = model_.config();
  logits_.resize(std::size_t(c.vocab));
  model_.logits(hidden_.data() + hidden_.size() - std::size_t(c.hidden), 1, logits_.data(), how_);
  return static_cast<int>(std::ranges::max_element(logits_) - logits_.begin());
}

}  // namespace example
