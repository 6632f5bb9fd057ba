#pragma once

#include <kvilt/kvilt.hpp>

#include <string>
#include <tuple>
#include <utility>

namespace example {

// Whose scale a number has: that which its format writes, or one that is known before the first token, of each KV head
// of a layer or of all of them.
enum class scale_of { format, head, tensor };

// A policy of the list, its type not yet erased: entries for the host are made of it by any compiler, and those for a
// GPU by nvcc. `Attention` makes that of a layer from its RoPE and the scale of its scores.
template <class Policy, class Attention, bool HasKernel = true>
struct listing {
  std::string name;
  Policy (*make)(int head_dim);
  Attention attention;
  bool by_default = true;
  scale_of scales = scale_of::format;
  std::string no_kernel = {};  // why there is none
};

template <class Variant>
struct attention_by {
  Variant variant;
  auto operator()(const kvilt::rope&, float scale) const { return kvilt::attention<Variant>(variant, scale); }
};

// Tokens of a window count their positions in the cache, as StreamingLLM has it.
struct attention_in_cache {
  auto operator()(const kvilt::rope& turn, float scale) const {
    return kvilt::attention<kvilt::causal, kvilt::cache_positions>(kvilt::causal{}, scale, {turn});
  }
};

template <class Policy>
Policy of_head_dim(int head_dim) {
  return Policy(head_dim);
}

// A policy whose parts take the model's head dim at run time, or, with `make`, any policy at all.
template <class Policy, kvilt::attention_variant Variant = kvilt::causal>
listing<Policy, attention_by<Variant>> named(std::string name, Variant variant = {},
                                             Policy (*make)(int head_dim) = of_head_dim<Policy>) {
  return {std::move(name), make, {variant}};
}

template <class Policy>
listing<Policy, attention_in_cache> named_streaming(std::string name) {
  return {std::move(name), of_head_dim<Policy>, {}};
}

// Formats whose scales come from ranges over a text: see calibrate.hpp.
template <class Policy>
listing<Policy, attention_by<kvilt::causal>> named_calibrated(std::string name, scale_of which) {
  return {std::move(name), of_head_dim<Policy>, {}, true, which};
}

// Listed, and run where they are asked for by name.
template <class... Listings>
std::tuple<Listings...> on_request(std::tuple<Listings...> all) {
  std::apply([](auto&... each) { ((each.by_default = false), ...); }, all);
  return all;
}
template <class Policy, class Attention, bool HasKernel>
listing<Policy, Attention, HasKernel> on_request(listing<Policy, Attention, HasKernel> one) {
  one.by_default = false;
  return one;
}

// What nvcc is to leave alone, and why: `why` ends a sentence about the policy.
template <class Policy, class Attention>
listing<Policy, Attention, false> on_host_only(const listing<Policy, Attention>& one, std::string why) {
  return {one.name, one.make, one.attention, one.by_default, one.scales, std::move(why)};
}

}  // namespace example
