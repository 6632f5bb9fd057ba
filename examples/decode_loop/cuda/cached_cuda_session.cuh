#pragma once

#include "../cached_session.hpp"
#include "cuda_array.cuh"
#include "cuda_session.cuh"

#include <kvilt/kvilt.cuh>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace example {

// RoPE's frequencies of all layers, one after the other.
inline cuda_array<std::uint64_t> turns_of(const session_shape& shape) {
  std::vector<std::uint64_t> turns;
  for (const layer_attention& layer : shape.layers)
    turns.insert(turns.end(), layer.turn.turns, layer.turn.turns + layer.turn.dims / 2);
  return cuda_array<std::uint64_t>(std::span<const std::uint64_t>(turns));
}

// The shape with frequencies that lie so elsewhere.
inline session_shape with_turns(session_shape shape, const std::uint64_t* turns) {
  for (layer_attention& layer : shape.layers) {
    layer.turn.turns = turns;
    turns += layer.turn.dims / 2;
  }
  return shape;
}

// What `cached_session` is to the host: a group of caches for the layers of each policy, behind one handle.
template <class Attention, class... Policies>
class cached_cuda_session final : public cuda_session {
 public:
  // `attention_for(const kvilt::rope&, float scale)`: that of a layer.
  template <class AttentionFor>
  cached_cuda_session(const session_shape& shape, const kvilt::gpu& exec, const AttentionFor& attention_for,
                      const kvilt::layer_group<Policies>&... groups)
      : exec_(exec),
        turns_(turns_of(shape)),
        shape_(with_turns(shape, turns_.data())),
        caches_(set_shape_for(shape), kvilt::memory<kvilt::memory_space::device>::from(memory_), groups...),
        workspace_(workspace_bytes()),
        sequence_(caches_.open()) {
    check_planned(memory_.asked(), kvilt::plan_bytes(set_shape_for(shape), groups...).bytes());
    for (const layer_attention& layer : shape_.layers) attention_.push_back(attention_for(layer.turn, shape_.scale));
    each_group<group_count>([&]<std::size_t G>() { set_scales<G>(std::get<G>(std::tie(groups...)).policy); });
  }

  void begin(int tokens, int bound) override {
    caches_.reserve(sequence_, tokens);
    step_ = caches_.begin(exec_, std::span(&sequence_, 1), std::span(&tokens, 1), shape_.q_heads,
                          {workspace_.data(), workspace_.size()}, {}, {.sequences = 1, .most_new_tokens = bound});
  }

  void attend(int layer, const kvilt::rows<float>& q, const kvilt::rows<const float>& k,
              const kvilt::rows<const float>& v, const kvilt::rows<float>& out) override {
    const auto nth = std::size_t(layer);
    caches_.visit(layer, step_, [&](const auto& view, const kvilt::device_step& step, const kvilt::head_range&) {
      kvilt::append(exec_, view, step, q, k, v, shape_.layers[nth].turn);
      attention_[nth](exec_.with_early_reads(), view, step, q, out);
    });
  }

  void commit() override { caches_.commit(step_); }
  void cancel() override { caches_.cancel(); }

  kvilt::idx length() const override { return caches_.length(sequence_); }
  int max_step() const override { return shape_.max_step; }

  void restart() override {
    caches_.close(sequence_);
    sequence_ = caches_.open();
  }

  kvilt::idx cache_bytes() const override { return memory_.asked() - caches_.bytes().table_bytes(); }

 private:
  using set = kvilt::device_cache_set<Policies...>;
  static constexpr std::size_t group_count = sizeof...(Policies);

  // For steps of one token and of as many as there may be.
  std::size_t workspace_bytes() const {
    return std::max(caches_.workspace_bytes(exec_, 1, shape_.q_heads),
                    caches_.workspace_bytes(exec_, 1, shape_.q_heads, shape_.max_step));
  }

  template <std::size_t G, class Policy>
  void set_scales(const Policy& policy) {
    if constexpr (kvilt::cache<Policy>::has_static_scales) {
      const auto put = [this](const std::vector<float>& scales) {
        return scales_.emplace_back(std::span<const float>(scales)).span();
      };
      for (int layer = 0; layer < caches_.layers(); ++layer) {
        const kvilt::layer_share& share = caches_.shares(layer).front();
        if (std::size_t(share.group) != G) continue;
        const layer_ranges& ranges = shape_.layers[std::size_t(layer)].ranges;
        caches_.template set_scales<int(G)>(share.layer, put(scales_for(policy.k, ranges.k)),
                                            put(scales_for(policy.v, ranges.v)));
      }
    }
  }

  kvilt::gpu exec_;
  cuda_array<std::uint64_t> turns_;
  session_shape shape_;
  std::vector<Attention> attention_;
  counting_memory<kvilt::memory_space::device> memory_{kvilt::device_memory()};
  set caches_;
  std::vector<cuda_array<float>> scales_;  // of K and V of each layer, where formats have static ones
  cuda_array<unsigned char> workspace_;
  kvilt::sequence sequence_;
  typename set::step_type step_;
};

}  // namespace example
