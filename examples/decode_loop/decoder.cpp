#include "decoder.hpp"

#include <kvilt/cache/cache.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>

namespace example {

int decoder::feed(std::span<const int> tokens) {
  const llama_config& c = model_.config();
  const auto attention = [this](int layer, int, float* q, float* k, const float* v, float* out) {
    cache_.attend(exec_, layer, q, k, v, out);
  };
  kvilt::in_chunks(kvilt::idx(tokens.size()), cache_.max_step(), [&](kvilt::idx first, int count) {
    cache_.begin(count, count);
    model_.forward(tokens.subspan(std::size_t(first), std::size_t(count)), attention, hidden_);
    cache_.commit();
  });
  logits_.resize(std::size_t(c.vocab));
  model_.logits(hidden_.data() + hidden_.size() - std::size_t(c.hidden), 1, logits_.data());
  return static_cast<int>(std::ranges::max_element(logits_) - logits_.begin());
}

double decode_rate(llama_model& model, session& cache, const kvilt::host& exec, int last_token) {
  using clock = std::chrono::steady_clock;
  std::array<double, 8> seconds{};
  cache.make_room(static_cast<int>(seconds.size()) + 1);
  decoder decode(model, cache, exec);
  int token = decode.feed(std::array{last_token});  // the first one meets cold memory
  for (double& s : seconds) {
    const auto start = clock::now();
    token = decode.feed(std::array{token});
    s = std::chrono::duration<double>(clock::now() - start).count();
  }
  std::ranges::nth_element(seconds, seconds.begin() + seconds.size() / 2);
  return 1 / seconds[seconds.size() / 2];
}

}  // namespace example
