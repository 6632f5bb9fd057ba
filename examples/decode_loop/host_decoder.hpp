#pragma once

#include "decoder.hpp"
#include "session.hpp"
#include "transformer.hpp"

#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace example {

class host_decoder final : public decoder {
 public:
  host_decoder(transformer& model, session& cache, const kvilt::host& exec, arithmetic how = arithmetic::fp32)
      : model_(model), cache_(cache), exec_(exec), how_(how) {}
  // With a cache of its own.
  host_decoder(transformer& model, std::unique_ptr<session> cache, const kvilt::host& exec,
               arithmetic how = arithmetic::fp32)
      : host_decoder(model, *cache, exec, how) {
    own_ = std::move(cache);
  }

  int feed(std::span<const int> tokens) override;
  int peek(int token) override;
  const std::vector<float>& logits() override { return logits_; }
  kvilt::idx length() const override { return cache_.length(); }
  kvilt::idx cache_bytes() const override { return cache_.cache_bytes(); }

  session* host_cache() override { return &cache_; }

  session& cache() { return cache_; }

 private:
  void run(std::span<const int> tokens);
  int predict();

  transformer& model_;
  std::unique_ptr<session> own_;
  session& cache_;
  kvilt::host exec_;
  arithmetic how_;
  std::vector<float> hidden_;  // [tokens][hidden]
  std::vector<float> logits_;  // [vocab]
};

}  // namespace example
