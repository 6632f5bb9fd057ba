#pragma once

#include "device.cuh"
#include "random.cuh"

#include <kvilt/cache/budget.hpp>

#include <numeric>
#include <random>
#include <vector>

/// K and V in device memory, as an engine that owns its memory lays them out: one pool a layer, whose pages belong to
/// sequences in an order at random, and one page table for all layers.
namespace bench {

/// Rows of all sequences, layer by layer. Policies without 16-bit parts.
template <class Policy>
class kv_layers {
  static_assert(Policy::exact_sinks == 0 && Policy::tail == 0);

 public:
  using view_type = kvilt::view_of<kvilt::memory_space::device, Policy>;
  static constexpr bool tabled = kvilt::tabled_layout<typename Policy::layout_type>;

  kv_layers(const Policy& policy, int layers, int sequences, int kv_heads, idx length, int max_step)
      : policy_(policy),
        kv_heads_(kv_heads),
        plan_(policy, shape_of(policy, layers, sequences, kv_heads, length, max_step)),
        data_(idx(layers) * plan_.layer_bytes()) {
    if constexpr (tabled) table_ = device_array<kvilt::page_id>(shuffled_pages(sequences));
    data_.fill(0xff);
  }

  idx bytes() const { return data_.size() + idx(table_.bytes()); }
  const Policy& policy() const { return policy_; }

  view_type view(int layer) const {
    using rule = typename Policy::retention_type;
    const kvilt::geometry planes = plan_.body.at(data_.data() + layer * plan_.layer_bytes());
    const kvilt::interval<kvilt::part::body, rule> keep(policy_.retention, Policy::sinks,
                                                        {plan_.body_sinks, plan_.window_slots});
    const typename Policy::body_segment body{bound(), keep, policy_.k, policy_.v, planes};
    if constexpr (Policy::sinks > 0) {
      const kvilt::interval<kvilt::part::sinks, rule> first(policy_.retention, Policy::sinks);
      return view_type(kv_heads_, typename Policy::sinks_segment{bound(), first, policy_.k, policy_.v, planes}, body);
    } else {
      return view_type(kv_heads_, body);
    }
  }

 private:
  static kvilt::cache_shape shape_of(const Policy& policy, int layers, int sequences, int kv_heads, idx length,
                                     int max_step) {
    kvilt::cache_shape shape;
    idx room = length;
    if constexpr (tabled) room = kvilt::round_up(length, policy.layout.page_rows({}));
    shape.layers = layers, shape.kv_heads = kv_heads, shape.sequences = sequences;
    shape.tokens = sequences * room, shape.max_length = length, shape.max_step = max_step;
    return shape;
  }
  std::vector<kvilt::page_id> shuffled_pages(int sequences) const {
    std::vector<kvilt::page_id> ids(std::size_t(sequences * plan_.bytes.table_width));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(3));
    return ids;
  }
  auto bound() const {
    if constexpr (tabled)
      return policy_.layout.bind(table_.data(), plan_.bytes.table_width);
    else
      return policy_.layout.bind(plan_.request);
  }

  Policy policy_;
  int kv_heads_;
  kvilt::detail::arrangement<Policy> plan_;
  device_array<unsigned char> data_;    // [layer]{codes | params}
  device_array<kvilt::page_id> table_;  // [sequences][table_width]
};

inline constexpr int longest_row = 256;

/// Normal rows of all that sequences of `n` tokens keep, as the formats write them; one thread a row of K and of V.
template <class View>
__global__ void fill_rows_kernel(const __grid_constant__ View view, kvilt::lengths n, int sequences,
                                 std::uint64_t seed) {
  const int heads = view.kv_heads();
  const idx rows = sequences * n.after * heads, step = idx(gridDim.x) * blockDim.x;
  for (idx row = idx(blockIdx.x) * blockDim.x + threadIdx.x; row < rows; row += step) {
    const int head = int(row % heads), sequence = int(row / heads / n.after);
    const idx position = row / heads % n.after;
    view.each([&](const auto& seg) {
      const idx slot = seg.retention.slot(n, sequence, head, position);
      if (slot < 0) return;
      const kvilt::place p = seg.layout.locate(sequence, head, slot);
      float x[longest_row];
      for (int d = 0; d < seg.k.dim(); ++d) x[d] = random_normal(seed, std::uint64_t(row * 2 * longest_row + d));
      seg.k.encode(x, seg.k_row(p, head));
      for (int d = 0; d < seg.v.dim(); ++d) x[d] = random_normal(seed, std::uint64_t((row * 2 + 1) * longest_row + d));
      seg.v.encode(x, seg.v_row(p, head));
    });
  }
}

template <class View>
void fill_rows(const stream& on, const View& view, kvilt::lengths n, int sequences, std::uint64_t seed) {
  fill_rows_kernel<<<blocks_of(2), 256, 0, on>>>(view, n, sequences, seed);
  check(cudaGetLastError(), "a launch");
}

template <class Format>
__device__ void decode_row(const Format& format, kvilt::row_ref row, float* to) {
  for (int first = 0; first < format.dim(); first += 8) {
    float x[8];
    format.template decode<8>(row, first, x);
    for (int i = 0; i < 8; ++i) to[first + i] = x[i];
  }
}

/// What one KV head of a sequence keeps, by position. k: [n.after][k_dim]; v: [n.after][v_dim]
template <class View>
__global__ void decode_rows_kernel(const __grid_constant__ View view, kvilt::lengths n, int sequence, int head,
                                   float* k, float* v) {
  view.each([&](const auto& seg) {
    const idx count = seg.retention.count(n, sequence, head), step = idx(gridDim.x) * blockDim.x;
    for (idx i = idx(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
      const kvilt::kept_row row = seg.retention.at(n, sequence, head, i);
      const kvilt::place p = seg.layout.locate(sequence, head, row.slot);
      decode_row(seg.k, seg.k_row(p, head), k + row.position * seg.k.dim());
      decode_row(seg.v, seg.v_row(p, head), v + row.position * seg.v.dim());
    }
  });
}

/// Rows that one KV head of a sequence keeps.
template <class View>
idx kept_rows(const View& view, kvilt::lengths n) {
  idx rows = 0;
  view.each([&](const auto& seg) { rows += seg.retention.count(n, 0, 0); });
  return rows;
}
/// Bytes of a token in one KV head: codes and params of K and V.
template <class Policy>
idx row_bytes(const Policy& p) {
  return p.k.code_bytes() + p.k.param_bytes() + p.v.code_bytes() + p.v.param_bytes();
}

}  // namespace bench
