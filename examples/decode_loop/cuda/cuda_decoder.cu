#include "cuda_decoder.cuh"

#include <kvilt/cache/step.hpp>

#include <array>
#include <cstddef>
#include <utility>

namespace example {
namespace {

std::size_t elements(std::size_t a, int b) {
  return a * static_cast<std::size_t>(b);
}

}  // namespace

cuda_decoder::cuda_decoder(cuda_transformer& model, std::unique_ptr<cuda_session> cache)
    : model_(model), cache_(std::move(cache)), predicted_(std::size_t(model.config().vocab)) {}

int cuda_decoder::feed(std::span<const int> tokens) {
  model_.send(tokens);
  int last = 0;  // of the newest step
  kvilt::in_chunks(kvilt::idx(tokens.size()), cache_->max_step(), [&](kvilt::idx first, int count) {
    run(static_cast<int>(first), count);
    cache_->commit();
    last = count - 1;
  });
  return predict(last);
}

int cuda_decoder::peek(int token) {
  model_.send(std::array{token});
  run(0, 1);
  cache_->cancel();
  return predict(0);
}

const std::vector<float>& cuda_decoder::logits() {
  if (!copied_) {
    logits_.resize(predicted_.size());
    check(cudaMemcpyAsync(logits_.data(), predicted_.data(), logits_.size() * sizeof(float), cudaMemcpyDeviceToHost,
                          model_.on()),
          "logits");
    model_.on().wait();
    copied_ = true;
  }
  return logits_;
}

void cuda_decoder::read(int token, float* hidden) {
  run(token, 1);
  cache_->commit();
  check(cudaMemcpyAsync(hidden, model_.hidden(0), elements(sizeof(float), model_.config().hidden),
                        cudaMemcpyDeviceToDevice, model_.on()),
        "what a pass leaves");
}

void cuda_decoder::run(int first, int count) {
  const int bound = count == 1 ? 1 : cache_->max_step();
  cache_->begin(count, bound);
  const graph& pass = graph_for(bound);
  model_.embed(first, count);
  pass.launch();
}

int cuda_decoder::predict(int token) {
  model_.logits(model_.hidden(token), 1, predicted_.data());
  copied_ = false;
  return model_.likeliest(predicted_.data());
}

const graph& cuda_decoder::graph_for(int bound) {
  std::unique_ptr<const graph>& pass = bound == 1 ? single_ : longest_;
  if (!pass)
    pass = model_.record(bound, [this](int layer, const kvilt::rows<float>& q, const kvilt::rows<const float>& k,
                                       const kvilt::rows<const float>& v,
                                       const kvilt::rows<float>& out) { cache_->attend(layer, q, k, v, out); });
  return *pass;
}

cuda_reader::cuda_reader(cuda_transformer& model, std::vector<std::unique_ptr<cuda_session>> caches)
    : model_(model),
      hidden_(elements(caches.size() * block, model.config().hidden)),
      logits_(elements(block, model.config().vocab)) {
  for (auto& cache : caches) caches_.push_back(std::make_unique<cuda_decoder>(model, std::move(cache)));
}

void cuda_reader::restart() {
  for (const auto& decode : caches_) decode->restart();
}

void cuda_reader::read(std::span<const int> tokens, const std::function<void()>& tick) {
  model_.send(tokens);
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    for (int t = 0; t < static_cast<int>(tokens.size()); ++t) caches_[i]->read(t, hidden(i, t));
    tick();
  }
}

void cuda_reader::logits(std::size_t cache, int first, int rows, float* out) {
  model_.logits(hidden(cache, first), rows, logits_.data());
  check(cudaMemcpyAsync(out, logits_.data(), sizeof(float) * elements(std::size_t(rows), config().vocab),
                        cudaMemcpyDeviceToHost, model_.on()),
        "logits");
  model_.on().wait();
}

float* cuda_reader::hidden(std::size_t cache, int token) const {
  return hidden_.data() + elements(cache * block + std::size_t(token), config().hidden);
}

}  // namespace example
