#include "decoder.hpp"

#include <kvilt/cache/cache.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>

namespace example {

int decoder::feed(std::span<const int> tokens) {
  kvilt::in_chunks(kvilt::idx(tokens.size()), cache_.max_step(), [&](kvilt::idx first, int count) {
    run(tokens.subspan(std::size_t(first), std::size_t(count)));
    cache_.commit();
  });
  return predict();
}

int decoder::peek(int token) {
  run(std::array{token});
  cache_.cancel();
  return predict();
}

void decoder::run(std::span<const int> tokens) {
  const auto attention = [this](int layer, int, float* q, float* k, const float* v, float* out) {
    cache_.attend(exec_, layer, q, k, v, out);
  };
  const int count = static_cast<int>(tokens.size());
  cache_.begin(count, count);
  model_.forward(tokens, attention, hidden_, how_);
}

int decoder::predict() {
  const model_config& c = model_.config();
  logits_.resize(std::size_t(c.vocab));
  model_.logits(hidden_.data() + hidden_.size() - std::size_t(c.hidden), 1, logits_.data(), how_);
  return static_cast<int>(std::ranges::max_element(logits_) - logits_.begin());
}

double decode_rate(transformer& model, session& cache, const kvilt::host& exec, int token, arithmetic how) {
  using clock = std::chrono::steady_clock;
  std::array<double, 8> seconds{};
  decoder decode(model, cache, exec, how);
  decode.peek(token);  // the first one meets cold memory
  for (double& s : seconds) {
    const auto start = clock::now();
    decode.peek(token);
    s = std::chrono::duration<double>(clock::now() - start).count();
  }
  std::ranges::nth_element(seconds, seconds.begin() + seconds.size() / 2);
  return 1 / seconds[seconds.size() / 2];
}

}  // namespace example
