#pragma once

#include <kvilt/core/floats.hpp>
#include <kvilt/core/given.hpp>
#include <kvilt/core/types.hpp>

#include <cmath>

namespace kvilt::inline KVILT_ABI {

/// Weights with which two partial softmaxes over disjoint keys are added: out = a * out_a + b * out_b, and the natural
/// log-sum-exp over both. The one algebra under split keys, shared prefixes and several devices; an empty part has
/// lse -infinity and is the identity (T. Dao, "FlashAttention-2", 2023, section 3.1).
struct merge_weights {
  float a = 0, b = 0;
  float lse = -__builtin_huge_valf();

  static merge_weights of(float lse_a, float lse_b) {
    constexpr float empty = -__builtin_huge_valf();
    if (lse_a == empty && lse_b == empty) return {};
    const float high = lse_a > lse_b ? lse_a : lse_b;
    const float ea = std::exp(lse_a - high), eb = std::exp(lse_b - high), sum = ea + eb;
    return {ea / sum, eb / sum, high + std::log(sum)};
  }
};

/// Merges finished partial results over disjoint keys; out and lse may be a's own. All rows are [tokens][heads][dim].
/// Throws `invalid_argument` where heads or dims differ, or something but `lse` is null.
template <class A, class B, class Out>
void merge(idx tokens, rows<A> a, natural_lse lse_a, rows<B> b, natural_lse lse_b, rows<Out> out, natural_lse lse) {
  const int heads = out.heads, dim = out.dim;
  detail::expects(a.heads == heads && b.heads == heads && a.dim == dim && b.dim == dim, "results of ", a.heads, " and ",
                  b.heads, " heads of ", a.dim, " and ", b.dim, " numbers are merged into ", heads, " of ", dim);
  detail::check_memory(a.data && b.data ? out.data : nullptr, tokens, "a result of ", tokens, " rows to be merged");
  detail::check_memory(lse_a ? lse_b.data : nullptr, tokens, "a list of log-sum-exps to be merged");
  detail::check_written("rows of a merged result", out, tokens);
  if (lse) detail::check_written(lse, tokens, heads);
  for (idx t = 0; t < tokens; ++t)
    for (int h = 0; h < heads; ++h) {
      const merge_weights w = merge_weights::of(lse_a.at(t, h), lse_b.at(t, h));
      for (int i = 0; i < dim; ++i) {
        // NOTE: a part of weight 0 may hold anything: 0 x NaN is NaN.
        const float from_a = w.a != 0 ? w.a * load(a.at(t, h)[i]) : 0.0f;
        const float from_b = w.b != 0 ? w.b * load(b.at(t, h)[i]) : 0.0f;
        store(out.at(t, h)[i], from_a + from_b);
      }
      if (lse) lse.at(t, h) = w.lse;
    }
}

/// Adds a sink to finished results that were computed without it, in place: a part with one key more, whose value is 0.
/// For parts that are merged: once, at the end. Rows are [tokens][heads][dim], sinks [heads], natural units.
/// Throws `invalid_argument` where something is null.
template <class Out>
void merge_sink(idx tokens, rows<Out> out, natural_lse lse, const float* sinks) {
  detail::expects(tokens == 0 || lse, "a sink is added to results without log-sum-exps");
  detail::check_memory(out.data && sinks ? out.data : nullptr, tokens, "a result of ", tokens, " rows, or its sinks");
  detail::check_written("rows of a result with a sink", out, tokens);
  detail::check_written(lse, tokens, out.heads);
  for (idx t = 0; t < tokens; ++t)
    for (int h = 0; h < out.heads; ++h) {
      const merge_weights w = merge_weights::of(lse.at(t, h), sinks[h]);
      for (int i = 0; i < out.dim; ++i) store(out.at(t, h)[i], w.a != 0 ? w.a * load(out.at(t, h)[i]) : 0.0f);
      lse.at(t, h) = w.lse;
    }
}

}  // namespace kvilt::inline KVILT_ABI
