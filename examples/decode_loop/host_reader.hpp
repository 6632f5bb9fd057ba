#pragma once

#include "host_decoder.hpp"
#include "reader.hpp"

#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace example {

// A block runs through a layer for all caches at once, so that projections are large matrix products; in attention each
// cache takes its tokens one by one.
class host_reader final : public reader {
 public:
  // `how`: of decoding; what is read is computed in fp32.
  host_reader(transformer& model, const kvilt::host& exec, std::vector<std::unique_ptr<session>> caches,
              arithmetic how = arithmetic::fp32);

  const model_config& config() const override { return model_.config(); }
  std::size_t caches() const override { return caches_.size(); }
  host_decoder& cache(std::size_t i) override { return *caches_[i]; }
  void restart() override;
  void read(std::span<const int> tokens, const std::function<void()>& tick) override;
  long ticks() const override { return static_cast<long>(config().layers.size()); }
  void logits(std::size_t cache, int first, int rows, float* out) override;

 private:
  transformer& model_;
  kvilt::host exec_;
  std::vector<std::unique_ptr<host_decoder>> caches_;
  std::size_t count_ = 0;      // tokens of the block
  std::vector<int> repeated_;  // [caches][count]
  std::vector<float> hidden_;  // [caches][count][hidden]
};

}  // namespace example
