#pragma once

#include "../batch.cuh"
#include "../layers.cuh"
#include "../reference.hpp"
#include "entry.cuh"

#include <kvilt/kvilt.cuh>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace bench {

template <class Policy>
class filled_layers : public decode_subject {
  using number = kvilt::bfloat16;  // of queries and outputs

 public:
  explicit filled_layers(const decode_shape& s)
      : shape_(s),
        layers_(policy(), layers_for(s), s.batch, s.kv_heads, s.context, s.queries),
        plan_(stream_, layers_.view(0), s.batch, s.context - s.queries, s.queries, s.q_heads),
        q_(random_array<number>(rows() * policy().k.dim(), 5)),
        out_(rows() * policy().v.dim()) {
    for (int layer = 0; layer < layers(); ++layer)
      fill_rows(stream_, layers_.view(layer), lengths(), s.batch, std::uint64_t(layer));
    stream_.wait();
  }

  int layers() const override { return layers_for(shape_); }
  idx bytes() const override { return bytes_of(shape_, kept_rows(layers_.view(0), lengths())); }

  void attend(const kvilt::gpu& exec, int layer) override {
    const int k_dim = policy().k.dim(), v_dim = policy().v.dim();
    attend_(exec, layers_.view(layer), plan_.step(), kvilt::packed_rows(q_.data(), shape_.q_heads, k_dim),
            kvilt::packed_rows(out_.data(), shape_.q_heads, v_dim));
  }

  double error() override {
    out_.fill(0xff);
    attend(stream_, layers() - 1);
    stream_.wait();
    const int sequence = shape_.batch / 2, head = shape_.kv_heads - 1, group = shape_.q_heads / shape_.kv_heads;
    const kept kv = kept_of(sequence, head);
    const std::vector<number> q = q_.copied(), out = out_.copied();
    double worst = 0;
    for (int query = 0; query < shape_.queries; query += std::max(shape_.queries - 1, 1))
      for (int i = 0; i < group; i += std::max(group - 1, 1))
        worst = std::max(worst, error_of(kv, q, out, sequence, query, head * group + i));
    return worst;
  }

 private:
  struct kept {
    std::vector<float> k, v;  // [context][dim]
  };

  static Policy policy() { return Policy(); }
  idx rows() const { return idx(shape_.batch) * shape_.queries * shape_.q_heads; }
  kvilt::lengths lengths() const {
    const idx after = shape_.context, before = after - shape_.queries;
    return {before, after, before, after};
  }
  static idx bytes_of(const decode_shape& s, idx kept_tokens) {
    return s.batch * kept_tokens * s.kv_heads * row_bytes(policy());
  }
  // 1 GiB at least, so that what a layer has is in no cache when its turn comes again.
  static int layers_for(const decode_shape& s) {
    const idx width = Policy::retention_type::slides ? policy().retention.width() + Policy::sinks : s.context;
    const idx layer = bytes_of(s, std::min<idx>(width, s.context));
    return int(std::max<idx>(kvilt::ceil_div(idx(1) << 30, layer), 2));
  }

  kept kept_of(int sequence, int head) const {
    device_array<float> k(idx(shape_.context) * policy().k.dim()), v(idx(shape_.context) * policy().v.dim());
    k.fill(0xff), v.fill(0xff);
    decode_rows_kernel<<<64, 128, 0, stream_>>>(layers_.view(layers() - 1), lengths(), sequence, head, k.data(),
                                                v.data());
    check(cudaGetLastError(), "a launch");
    stream_.wait();
    return {k.copied(), v.copied()};
  }
  static std::vector<float> row_of(const std::vector<number>& from, idx row, int dim) {
    std::vector<float> x(std::size_t(dim), 0.0f);
    for (std::size_t d = 0; d < x.size(); ++d) x[d] = kvilt::load(from[std::size_t(row) * x.size() + d]);
    return x;
  }
  double error_of(const kept& kv, const std::vector<number>& q, const std::vector<number>& out, int sequence, int query,
                  int q_head) const {
    const int v_dim = policy().v.dim();
    const idx row = (idx(sequence) * shape_.queries + query) * shape_.q_heads + q_head;
    const seen_keys sees{idx(shape_.context) - shape_.queries + query, policy().retention.width(), Policy::sinks};
    return relative_error(row_of(out, row, v_dim),
                          attend_exactly(row_of(q, row, policy().k.dim()), kv.k, kv.v, std::size_t(v_dim), sees));
  }

  decode_shape shape_;
  stream stream_;
  kv_layers<Policy> layers_;
  device_plan plan_;
  kvilt::attention<kvilt::causal> attend_{kvilt::causal{}};
  device_array<number> q_;    // [batch][queries][q heads][k_dim]
  device_array<number> out_;  // [batch][queries][q heads][v_dim]
};

template <class Policy>
std::string layout_name() {
  const Policy p{};
  std::string name = Policy::layout_type::name();
  if constexpr (kvilt::tabled_layout<typename Policy::layout_type>) name += std::to_string(p.layout.page_rows({}));
  if constexpr (Policy::retention_type::slides)
    name = "ring" + std::to_string(p.retention.width()) + "+" + std::to_string(Policy::sinks);
  return name;
}

template <class Policy>
void add_entry(decode_entries& to) {
  to.push_back({Policy::k_format::name(), layout_name<Policy>(), Policy().k.dim(),
                [](const decode_shape& s) -> std::unique_ptr<decode_subject> {
                  return std::make_unique<filled_layers<Policy>>(s);
                }});
}

/// What each format is measured in.
template <class Format>
void add_fixed(decode_entries& to) {
  add_entry<kvilt::policy<kvilt::contiguous, Format>>(to);
  add_entry<kvilt::ring<Format, Format, 4096, 4>>(to);
}
template <class Format>
void add_paged(decode_entries& to) {
  add_entry<kvilt::policy<kvilt::paged<16>, Format>>(to);
  add_entry<kvilt::policy<kvilt::paged<64>, Format>>(to);
  add_entry<kvilt::policy<kvilt::paged<1>, Format>>(to);
}
template <class... Formats>
void add_pages_of_16(decode_entries& to) {
  (add_entry<kvilt::policy<kvilt::paged<16>, Formats>>(to), ...);
}

}  // namespace bench
