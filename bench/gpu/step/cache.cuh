#pragma once

#include <kvilt/core/floats.hpp>
#include <kvilt/gpu/gpu.cuh>

#include <memory>
#include <string>
#include <vector>

namespace bench {

using kvilt::idx;

/// The model's attention, as Llama 3 8B has it.
struct attention_shape {
  static constexpr int q_heads = 32, kv_heads = 8, dim = 128;
  static constexpr int qkv = (q_heads + 2 * kv_heads) * dim;  // numbers of a token's row: queries, keys, values

  int layers = 32, batch = 16;
  int context = 8192;  // tokens of a sequence, the step's own included
};

/// A full cache whose policy is erased, and what a step does with it.
class step_cache {
 public:
  virtual ~step_cache() = default;
  /// Of keys, values and page tables.
  virtual idx bytes() const = 0;
  /// Plans the step: once for all layers.
  virtual void begin(const kvilt::gpu& exec) = 0;
  /// Appends the token's keys and values and attends to all. qkv: [batch][qkv]; out: [batch][q heads][dim]
  virtual void attend(const kvilt::gpu& exec, int layer, kvilt::bfloat16* qkv, kvilt::bfloat16* out) = 0;
};

struct step_entry {
  std::string name;
  std::unique_ptr<step_cache> (*make)(const attention_shape&) = nullptr;
};

/// NOTE: a file each, so that they compile beside each other.
using step_entries = std::vector<step_entry>;
void add_fixed_caches(step_entries& to);
void add_paged_caches(step_entries& to);
void add_ring_caches(step_entries& to);

}  // namespace bench
