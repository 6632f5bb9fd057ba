#pragma once

#include "shape.hpp"

#include <memory>

namespace example {

/// Device memory that the engine owns. Its addresses are in the captured graph, so they stay.
struct decode_memory {
  bfloat16* pool = nullptr;  // [layers][2][pages][page_rows][kv_heads][dim]
  bfloat16* qkv = nullptr;   // [rows][heads][dim]: a step's tokens, of the layer at work
  bfloat16* out = nullptr;   // [layers][rows][q_heads][dim]
  batch_lists batch;
};

/// Steps of the model on the GPU: all that the engine's .cpp files see of decode.cu.
class device_decoder {
 public:
  /// `staged` is the batch in page-locked memory, which every step reads anew.
  device_decoder(const engine_shape& shape, const decode_memory& memory, const batch_lists& staged);
  device_decoder(const device_decoder&) = delete;
  device_decoder& operator=(const device_decoder&) = delete;
  ~device_decoder();

  /// One step of all layers, complete when it returns.
  void step() const;

 private:
  class recorded;
  std::unique_ptr<const recorded> step_;
};

}  // namespace example
