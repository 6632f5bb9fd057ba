#pragma once

#include "decoder.hpp"
#include "model_config.hpp"

#include <cstddef>
#include <functional>
#include <span>

namespace example {

// Several caches that read a text side by side with one model: what evaluation is written for.
class reader {
 public:
  static constexpr int block = 128;  // tokens that are read at a time, at most

  virtual ~reader() = default;

  virtual const model_config& config() const = 0;
  virtual std::size_t caches() const = 0;
  virtual decoder& cache(std::size_t i) = 0;

  // Every cache is empty again.
  virtual void restart() = 0;

  // Reads a block with every cache, token by token, each a step of its own, so that the query of token t reads the cache
  // just as decoding would leave it. Calls `tick` `ticks()` times.
  virtual void read(std::span<const int> tokens, const std::function<void()>& tick) = 0;
  virtual long ticks() const = 0;

  // What a cache's model predicts behind tokens [first, first + rows) of the block: out [rows][vocab].
  virtual void logits(std::size_t cache, int first, int rows, float* out) = 0;
};

}  // namespace example
