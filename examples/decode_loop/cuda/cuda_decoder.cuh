#pragma once

#include "../decoder.hpp"
#include "../reader.hpp"
#include "cuda_session.cuh"
#include "cuda_transformer.cuh"

#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace example {

// Decoding on a GPU. A pass through the model is one CUDA graph, captured when a step of its size comes first, one for
// single tokens and one for as many as a step may have; it is launched as it is while the sequence grows, since its
// length and page tables are read on the device.
class cuda_decoder final : public decoder {
 public:
  cuda_decoder(cuda_transformer& model, std::unique_ptr<cuda_session> cache);

  int feed(std::span<const int> tokens) override;
  int peek(int token) override;
  const std::vector<float>& logits() override;
  kvilt::idx length() const override { return cache_->length(); }
  kvilt::idx cache_bytes() const override { return cache_->cache_bytes(); }

  void restart() { cache_->restart(); }

  // Appends one of the tokens that the model was sent, and writes what it leaves of it to `hidden`, on the device. Waits
  // for nothing.
  void read(int token, float* hidden);

 private:
  void run(int first, int count);
  int predict(int token);
  const graph& graph_for(int bound);

  cuda_transformer& model_;
  std::unique_ptr<cuda_session> cache_;
  std::unique_ptr<const graph> single_, longest_;  // by the step's bound
  cuda_array<float> predicted_;                    // [vocab]
  std::vector<float> logits_;                      // [vocab], a copy where it was asked for
  bool copied_ = false;
};

// Caches that read one after the other.
class cuda_reader final : public reader {
 public:
  cuda_reader(cuda_transformer& model, std::vector<std::unique_ptr<cuda_session>> caches);

  const model_config& config() const override { return model_.config(); }
  std::size_t caches() const override { return caches_.size(); }
  cuda_decoder& cache(std::size_t i) override { return *caches_[i]; }
  void restart() override;
  void read(std::span<const int> tokens, const std::function<void()>& tick) override;
  long ticks() const override { return static_cast<long>(caches_.size()); }
  void logits(std::size_t cache, int first, int rows, float* out) override;

 private:
  float* hidden(std::size_t cache, int token) const;

  cuda_transformer& model_;
  std::vector<std::unique_ptr<cuda_decoder>> caches_;
  cuda_array<float> hidden_;  // [caches][block][hidden]
  cuda_array<float> logits_;  // [block][vocab]
};

}  // namespace example
