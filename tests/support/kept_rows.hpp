#pragma once

#include "support/memory.hpp"
#include "support/random.hpp"
#include "support/tensors.hpp"

#include <kvilt/kvilt.hpp>

#include <array>
#include <span>
#include <vector>

// Caches and sets whose sequences take tokens that depend on a tag and a position alone, and what they hold as bytes.
namespace support {

// A cache, with what a test does to it.
template <class Policy>
struct kept_cache {
  using policy_type = Policy;
  static constexpr kvilt::host exec() { return {}; }

  kept_cache(const Policy& p, const kvilt::cache_shape& shape, unsigned char fill = 0x5a)
      : policy(p), memory(fill), owner(shape, kvilt::memory<kvilt::memory_space::host>::from(memory), p) {
    if constexpr (kvilt::cache<Policy>::has_static_scales) set_scales(0.05f);
  }

  void set_scales(float scale) {
    for (std::vector<float>* s : {&k_scales, &v_scales}) s->clear();
    for (int head = 0; head < owner.shape().kv_heads; ++head) {
      if (kvilt::has_static_scale<typename Policy::k_format>) k_scales.push_back(scale * float(1 + head));
      if (kvilt::has_static_scale<typename Policy::v_format>) v_scales.push_back(scale * float(2 + head));
    }
    if constexpr (kvilt::cache<Policy>::has_static_scales)
      for (int layer = 0; layer < owner.shape().layers; ++layer) owner.set_scales(layer, k_scales, v_scales);
  }

  // A step of `tokens` tokens; returns every output.
  std::vector<float> step(kvilt::sequence s, std::uint64_t tag, int tokens) {
    owner.reserve(s, tokens);
    std::vector<unsigned char> workspace(owner.workspace_bytes(exec(), 1));
    const kvilt::idx before = owner.length(s);
    const kvilt::step now = owner.begin(exec(), {&s, 1}, {&tokens, 1}, workspace);
    std::vector<float> all;
    const int heads = owner.shape().kv_heads, k_dim = policy.k.dim(), v_dim = policy.v.dim();
    for (int layer = 0; layer < owner.shape().layers; ++layer) {
      const std::vector<float> k = rows(tag, before, tokens, layer, 0, heads * k_dim),
                               v = rows(tag, before, tokens, layer, 1, heads * v_dim),
                               q = rows(tag, before, tokens, layer, 2, 2 * heads * k_dim);
      std::vector<float> out(std::size_t(tokens * 2 * heads * v_dim));
      kvilt::append(exec(), owner.view(layer), now, kvilt::packed_rows(k.data(), heads, k_dim),
                    kvilt::packed_rows(v.data(), heads, v_dim));
      kvilt::attention{kvilt::causal{}}(exec(), owner.view(layer), now, kvilt::packed_rows(q.data(), 2 * heads, k_dim),
                                        kvilt::packed_rows(out.data(), 2 * heads, v_dim));
      all.insert(all.end(), out.begin(), out.end());
    }
    owner.commit(now);
    return all;
  }
  // Steps of uneven lengths until it has so many.
  void grow(kvilt::sequence s, std::uint64_t tag, kvilt::idx length) {
    for (int i = 0; owner.length(s) < length; ++i)
      step(s, tag, int(std::min<kvilt::idx>({1 + i % 5, length - owner.length(s), owner.shape().max_step})));
  }

  // Codes and params of every record that the sequence's next query sees, by layer, part, head and token: each row is
  // located by itself.
  std::vector<unsigned char> bytes(kvilt::sequence s) {
    std::vector<unsigned char> all;
    const kvilt::lengths n = owner.holds(s);
    const int row = owner.row(s);
    for (int layer = 0; layer < owner.shape().layers; ++layer) {
      const auto view = owner.view(layer);
      view.each([&](const auto& seg) {
        for (int head = 0; head < view.kv_heads(); ++head)
          for (kvilt::idx position = 0; position < n.after; ++position) {
            const kvilt::idx slot = seg.retention.slot(n, row, head, position);
            if (slot < 0) continue;
            const kvilt::place p = seg.layout.locate(row, head, slot);
            add(all, seg.k, seg.k_row(p, head));
            if (!view.values_in_keys) add(all, seg.v, seg.v_row(p, head));
          }
      });
    }
    return all;
  }

  Policy policy;
  test_memory memory;
  std::vector<float> k_scales, v_scales;
  kvilt::cache<Policy> owner;

 private:
  static std::vector<float> rows(std::uint64_t tag, kvilt::idx first, int tokens, int layer, int what, int count) {
    std::vector<float> all;
    for (int i = 0; i < tokens; ++i) {
      normal_numbers numbers(mixed({tag, std::uint64_t(first + i), std::uint64_t(layer), std::uint64_t(what)}));
      for (int d = 0; d < count; ++d) all.push_back(numbers.next());
    }
    return all;
  }
  template <class Format>
  static void add(std::vector<unsigned char>& all, const Format& f, const kvilt::row_ref& r) {
    if (r.row > 0) return;  // of a tile, which is there already
    all.insert(all.end(), r.codes, r.codes + f.code_bytes());
    if (f.param_bytes() > 0) all.insert(all.end(), r.params, r.params + f.param_bytes());
  }
};

}  // namespace support
