#pragma once

#include "session.hpp"

#include <kvilt/kvilt.hpp>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace example {

// The heap, keeping count of what it was asked for.
class counting_heap {
 public:
  void* allocate(std::size_t bytes, std::size_t align) {
    asked_ += kvilt::idx(bytes);
    return kvilt::host_memory().allocate(bytes, align);
  }
  void deallocate(void* p, std::size_t bytes, std::size_t align) noexcept {
    kvilt::host_memory().deallocate(p, bytes, align);
  }
  kvilt::idx asked() const { return asked_; }

 private:
  kvilt::idx asked_ = 0;
};

// A window over pages from a pool: those that it has left serve the tokens to come.
template <class Policy>
inline constexpr bool gives_pages_back =
    Policy::retention_type::slides && !kvilt::fixed_layout<typename Policy::layout_type>;

// How large a cache of this policy has to be for the session.
template <class Policy>
kvilt::cache_shape cache_shape_for(const Policy& policy, const session_shape& s) {
  const int layers = static_cast<int>(s.layers.size());
  kvilt::cache_shape shape{.layers = layers, .kv_heads = s.kv_heads, .tokens = s.tokens, .max_step = s.max_step};
  if constexpr (gives_pages_back<Policy>) {
    const kvilt::budget whole = kvilt::plan_bytes(policy, shape);
    const kvilt::idx pages = (whole.bytes_per_sequence - whole.exact_sequence_bytes) / layers / whole.body_page_bytes;
    shape.max_length = s.tokens;
    shape.tokens = pages * policy.layout.page_rows({});
  }
  return shape;
}

// What a format's largest code stands for at a scale of 1.
template <class Format>
float largest_at_scale_1(const Format& format) {
  float scale = 1, decoded[8];
  const std::vector<float> row(std::size_t(format.dim()), 1e30f);  // codes saturate
  std::vector<unsigned char> codes(std::size_t(format.code_bytes()));
  const kvilt::row_ref record{codes.data(), reinterpret_cast<unsigned char*>(&scale), 0};
  format.encode(row.data(), record);
  format.decode(record, 0, decoded);
  return decoded[0];
}

// Static scales at which the largest numbers of a text take the largest code; none for formats that write their own.
template <class Format>
std::vector<float> scales_for(const Format& format, std::vector<float> ranges) {
  if constexpr (!kvilt::has_static_scale<Format>) {
    return {};
  } else {
    for (float& r : ranges) r /= largest_at_scale_1(format);
    return ranges;
  }
}

// The same view, its page tables elsewhere.
template <kvilt::memory_space Space, class... Segments>
auto with_table(const kvilt::view<Space, Segments...>& view, const kvilt::page_id* table, kvilt::idx width) {
  std::tuple<Segments...> segments;
  view.each([&]<class Segment>(Segment segment) {
    if constexpr (kvilt::tabled_layout<typename Segment::layout_type>)
      segment.layout = segment.layout.bind(table, width);
    std::get<Segment>(segments) = segment;
  });
  return std::apply([&](const auto&... s) { return kvilt::make_view<Space>(view.kv_heads(), s...); }, segments);
}

// One sequence in one cache, whose layers all keep the same tokens.
template <class Policy, class Attention>
class cached_session final : public session {
 public:
  // `attention`: of each layer.
  cached_session(const session_shape& shape, const Policy& policy, std::vector<Attention> attention)
      : shape_(shape),
        attention_(std::move(attention)),
        cache_(cache_shape_for(policy, shape), kvilt::memory<kvilt::memory_space::host>::from(heap_), policy),
        workspace_(cache_.workspace_bytes(shape.exec, 1)),
        sequence_(cache_.open()) {
    const kvilt::idx planned = kvilt::plan_bytes(policy, cache_.shape()).bytes();
    if (heap_.asked() != planned)
      throw std::logic_error("the cache took " + std::to_string(heap_.asked()) + " bytes; planned were " +
                             std::to_string(planned));
    if constexpr (kvilt::cache<Policy>::has_static_scales) set_scales(policy);
  }

  void begin(int tokens, int step_tokens) override {
    items_.clear();
    tables_.clear();
    kvilt::in_chunks(tokens, step_tokens, [&](kvilt::idx first, int count) {
      // NOTE: a step is plain data, so all but the last are ended before any layer has seen them.
      if (first > 0) cache_.commit(step_);
      cache_.reserve(sequence_, count);
      step_ = cache_.begin(shape_.exec, std::span(&sequence_, 1), std::span(&count, 1), workspace_);
      items_.push_back(step_.items[0]);
      if constexpr (gives_pages_back<Policy>) keep_table();
    });
  }

  void attend(const kvilt::host& exec, int layer, float* q, const float* k, const float* v, float* out) override {
    const auto view = cache_.view(layer);
    const kvilt::idx q_row = kvilt::idx(shape_.q_heads) * shape_.head_dim;
    const kvilt::idx kv_row = kvilt::idx(shape_.kv_heads) * shape_.head_dim;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if constexpr (gives_pages_back<Policy>)
        run(exec, with_table(view, tables_.data() + i * table_width(), kvilt::idx(table_width())), layer, items_[i], q,
            k, v, out);
      else
        run(exec, view, layer, items_[i], q, k, v, out);
      q += items_[i].new_tokens * q_row, out += items_[i].new_tokens * q_row;
      k += items_[i].new_tokens * kv_row, v += items_[i].new_tokens * kv_row;
    }
  }

  void commit() override { cache_.commit(step_); }
  void cancel() override { cache_.cancel(); }

  kvilt::idx length() const override { return cache_.length(sequence_); }
  int max_step() const override { return shape_.max_step; }

  void restart() override {
    cache_.close(sequence_);
    sequence_ = cache_.open();
  }

  kvilt::idx cache_bytes() const override { return heap_.asked() - cache_.bytes().table_bytes; }

 private:
  void set_scales(const Policy& policy) {
    for (const layer_attention& layer : shape_.layers)
      scales_.push_back({scales_for(policy.k, layer.ranges.k), scales_for(policy.v, layer.ranges.v)});
    for (std::size_t layer = 0; layer < scales_.size(); ++layer)
      cache_.set_scales(int(layer), scales_[layer].k, scales_[layer].v);
  }

  std::size_t table_width() const { return std::size_t(cache_.bytes().table_width); }

  // Pages that a window gives back serve later steps while other layers still need them for earlier ones: each step
  // keeps the page table that it was planned with. A page lies elsewhere in each layer, so nothing is overwritten.
  void keep_table() {
    cache_.view(0).each([&](const auto& segment) {
      if constexpr (kvilt::tabled_layout<decltype(segment.layout)>) {
        if (tables_.size() == items_.size() * table_width()) return;  // by a segment before
        for (std::size_t page = 0; page < table_width(); ++page)
          tables_.push_back(page_of(segment.layout, kvilt::idx(page)));
      }
    });
  }
  template <class Layout>
  kvilt::page_id page_of(const Layout& layout, kvilt::idx page) const {
    return kvilt::page_id(layout.locate(sequence_.slot, 0, page * layout.page_rows({})).page);
  }

  template <class View>
  void run(const kvilt::host& exec, const View& view, int layer, const kvilt::step_item& item, float* q, const float* k,
           const float* v, float* out) {
    const auto q_rows = [&](float* from) { return kvilt::packed_rows(from, shape_.q_heads, shape_.head_dim); };
    const auto kv_rows = [&](const float* from) { return kvilt::packed_rows(from, shape_.kv_heads, shape_.head_dim); };
    kvilt::step step = step_;
    step.items = &item;
    step.q_rows = step.kv_rows = item.new_tokens;
    kvilt::append(exec, view, step, q_rows(q), kv_rows(k), kv_rows(v), shape_.layers[std::size_t(layer)].turn);
    attention_[std::size_t(layer)](exec, view, step, q_rows(q), q_rows(out));
  }

  session_shape shape_;
  std::vector<Attention> attention_;
  counting_heap heap_;
  kvilt::cache<Policy> cache_;
  std::vector<layer_ranges> scales_;  // where formats have static ones
  std::vector<unsigned char> workspace_;
  kvilt::sequence sequence_;
  kvilt::step step_;                     // the newest planned
  std::vector<kvilt::step_item> items_;  // of every planned step
  std::vector<kvilt::page_id> tables_;   // of each, where windows give pages back: [steps][table width]
};

}  // namespace example
