#pragma once

#include <kvilt/attention/variant.hpp>
#include <kvilt/core/given.hpp>

namespace kvilt::inline KVILT_ABI {

/// A learned logit per query head that takes part in the softmax and has no value: attention to nothing (gpt-oss;
/// E. Miller, "Attention is off by one", 2023, is the logit 0). To be composed with a mask.
struct sink_logit {
  const float* logits = nullptr;  // [q heads], natural units

  void check() const { detail::check_memory(logits, 1, "the list of the sink's logits"); }
  KVILT_HD constexpr float sink(int q_head) const { return logits[q_head]; }
};

static_assert(attention_variant<sink_logit> && attention_variant<composed<causal, sink_logit>>);

}  // namespace kvilt::inline KVILT_ABI
