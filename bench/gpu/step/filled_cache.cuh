#pragma once

#include "../batch.cuh"
#include "../layers.cuh"
#include "cache.cuh"

#include <kvilt/cache/policy_name.hpp>
#include <kvilt/kvilt.cuh>

#include <memory>
#include <vector>

namespace bench {

template <class Policy>
class filled_cache : public step_cache {
 public:
  explicit filled_cache(const attention_shape& s)
      : table_(s.dim, 5e5, kvilt::rope_pairs::half_split),
        turns_(turns_of(table_)),
        layers_(Policy(), s.layers, s.batch, s.kv_heads, s.context, 1),
        plan_(stream_, layers_.view(0), s.batch, s.context - 1, 1, s.q_heads) {
    const idx before = s.context - 1;
    for (int layer = 0; layer < s.layers; ++layer)
      fill_rows(stream_, layers_.view(layer), {before, before, before, before}, s.batch, std::uint64_t(layer));
    stream_.wait();
  }

  idx bytes() const override { return layers_.bytes(); }
  void begin(const kvilt::gpu& exec) override { plan_.again(exec, layers_.view(0)); }

  void attend(const kvilt::gpu& exec, int layer, kvilt::bfloat16* qkv, kvilt::bfloat16* out) override {
    using s = attention_shape;
    const auto heads = [&](int first, int count) {
      return kvilt::rows<kvilt::bfloat16>{qkv + first * s::dim, s::qkv, s::dim, count, s::dim};
    };
    const auto q = heads(0, s::q_heads), k = heads(s::q_heads, s::kv_heads),
               v = heads(s::q_heads + s::kv_heads, s::kv_heads);
    kvilt::rope turn = table_;
    turn.turns = turns_.data();
    kvilt::append(exec, layers_.view(layer), plan_.step(), q, k, v, turn);
    attend_(exec.with_early_reads(), layers_.view(layer), plan_.step(), q, kvilt::packed_rows(out, s::q_heads, s::dim));
  }

 private:
  static std::vector<std::uint64_t> turns_of(const kvilt::rope_table& table) {
    const kvilt::rope turn = table;
    return std::vector<std::uint64_t>(turn.turns, turn.turns + turn.dims / 2);
  }

  stream stream_;
  kvilt::rope_table table_;
  device_array<std::uint64_t> turns_;  // [dim / 2]
  kv_layers<Policy> layers_;
  device_plan plan_;
  kvilt::attention<kvilt::causal> attend_{kvilt::causal{}};
};

template <class Policy>
void add_cache(step_entries& to) {
  to.push_back({kvilt::name_of(Policy()), [](const attention_shape& s) -> std::unique_ptr<step_cache> {
                  return std::make_unique<filled_cache<Policy>>(s);
                }});
}

}  // namespace bench
