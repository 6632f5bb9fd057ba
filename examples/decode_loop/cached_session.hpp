#pragma once

#include "session.hpp"

#include <kvilt/kvilt.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
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

inline kvilt::set_shape set_shape_for(const session_shape& s) {
  return {.sequences = 1, .tokens = s.tokens, .max_length = s.tokens, .max_step = s.max_step};
}

// Layers of the session's model that keep their tokens by this policy.
template <class Policy>
kvilt::layer_group<Policy> group_for(const Policy& policy, const std::vector<int>& layers, const session_shape& s) {
  kvilt::layer_group<Policy> group{{layers.begin(), layers.end()}, s.kv_heads, policy};
  if constexpr (gives_pages_back<Policy>) {
    const kvilt::budget whole = kvilt::plan_bytes(
        policy,
        {.layers = 1, .kv_heads = s.kv_heads, .tokens = s.tokens, .max_length = s.tokens, .max_step = s.max_step});
    const kvilt::idx pages = (whole.bytes_per_sequence - whole.exact_sequence_bytes) / whole.body_page_bytes;
    group.tokens = pages * policy.layout.page_rows({});
  }
  return group;
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
auto with_table(const kvilt::view<Space, Segments...>& view, std::span<const kvilt::page_id> table) {
  std::tuple<Segments...> segments;
  view.each([&]<class Segment>(Segment segment) {
    if constexpr (kvilt::tabled_layout<typename Segment::layout_type>)
      segment.layout = segment.layout.bind(table.data(), kvilt::idx(table.size()));
    std::get<Segment>(segments) = segment;
  });
  return std::apply([&](const auto&... s) { return kvilt::make_view<Space>(view.kv_heads(), s...); }, segments);
}

// One sequence of a model: a group of caches, one for the layers of each policy, behind one handle.
template <class Attention, class... Policies>
class cached_session final : public session {
 public:
  // `attention`: of each layer.
  cached_session(const session_shape& shape, std::vector<Attention> attention,
                 const kvilt::layer_group<Policies>&... groups)
      : shape_(shape),
        attention_(std::move(attention)),
        caches_(set_shape_for(shape), kvilt::memory<kvilt::memory_space::host>::from(heap_), groups...),
        scales_(shape.layers.size()),
        workspace_(caches_.workspace_bytes(shape.exec, 1)),
        sequence_(caches_.open()) {
    const kvilt::idx planned = kvilt::plan_bytes(set_shape_for(shape), groups...).bytes();
    if (heap_.asked() != planned)
      throw std::logic_error("the caches took " + std::to_string(heap_.asked()) + " bytes; planned were " +
                             std::to_string(planned));
    each_group([&]<std::size_t G>() { set_scales<G>(std::get<G>(std::tie(groups...)).policy); });
  }

  void begin(int tokens, int step_tokens) override {
    planned_.clear();
    kvilt::in_chunks(tokens, step_tokens, [&](kvilt::idx first, int count) {
      // NOTE: a step is plain data, so all but the last are ended before any layer has seen them.
      if (first > 0) caches_.commit(planned_.back().steps);
      caches_.reserve(sequence_, count);
      planned_step& p = planned_.emplace_back();
      p.steps = caches_.begin(shape_.exec, std::span(&sequence_, 1), std::span(&count, 1), workspace_);
      each_group([&]<std::size_t G>() { keep<G>(p); });
    });
  }

  void attend(const kvilt::host& exec, int layer, float* q, const float* k, const float* v, float* out) override {
    const kvilt::idx q_row = kvilt::idx(shape_.q_heads) * shape_.head_dim;
    const kvilt::idx kv_row = kvilt::idx(shape_.kv_heads) * shape_.head_dim;
    const auto group = std::size_t(caches_.shares(layer).front().group);
    for (const planned_step& p : planned_) {
      typename set::step_type steps = p.steps;
      for (std::size_t g = 0; g < group_count; ++g) steps[g].items = &p.items[g];
      caches_.visit(layer, steps, [&](const auto& view, const kvilt::step& step, const kvilt::head_range&) {
        const std::vector<kvilt::page_id>& table = p.tables[group];
        run(exec, table.empty() ? view : with_table(view, table), step, layer, q, k, v, out);
      });
      const int tokens = p.items[group].new_tokens;
      q += tokens * q_row, out += tokens * q_row;
      k += tokens * kv_row, v += tokens * kv_row;
    }
  }

  void commit() override { caches_.commit(planned_.back().steps); }
  void cancel() override { caches_.cancel(); }

  kvilt::idx length() const override { return caches_.length(sequence_); }
  int max_step() const override { return shape_.max_step; }

  void restart() override {
    caches_.close(sequence_);
    sequence_ = caches_.open();
  }

  kvilt::idx cache_bytes() const override { return heap_.asked() - caches_.bytes().table_bytes(); }

 private:
  using set = kvilt::cache_set<Policies...>;
  static constexpr std::size_t group_count = sizeof...(Policies);

  // What a step needs beyond the next one's beginning: the owner's items and, where windows give pages back, its tables.
  // Such pages serve later steps while other layers still need them for earlier ones; a page lies elsewhere in each
  // layer, so nothing is overwritten.
  struct planned_step {
    typename set::step_type steps;
    std::array<kvilt::step_item, group_count> items;
    std::array<std::vector<kvilt::page_id>, group_count> tables;  // of each [table width], or empty
  };

  // Calls body.operator()<G>() for each group.
  template <class Body>
  static void each_group(Body&& body) {
    [&]<std::size_t... G>(std::index_sequence<G...>) {
      (body.template operator()<G>(), ...);
    }
    (std::make_index_sequence<group_count>());
  }

  template <std::size_t G, class Policy>
  void set_scales(const Policy& policy) {
    if constexpr (kvilt::cache<Policy>::has_static_scales) {
      for (int layer = 0; layer < caches_.layers(); ++layer) {
        const kvilt::layer_share& share = caches_.shares(layer).front();
        if (std::size_t(share.group) != G) continue;
        const layer_ranges& ranges = shape_.layers[std::size_t(layer)].ranges;
        layer_ranges& scales = scales_[std::size_t(layer)];
        scales = {scales_for(policy.k, ranges.k), scales_for(policy.v, ranges.v)};
        caches_.template set_scales<int(G)>(share.layer, scales.k, scales.v);
      }
    }
  }

  template <std::size_t G>
  void keep(planned_step& p) const {
    p.items[G] = p.steps[G].items[0];
    if constexpr (gives_pages_back<std::tuple_element_t<G, std::tuple<Policies...>>>)
      caches_.template view<int(G)>(0).each([&](const auto& segment) {
        if constexpr (kvilt::tabled_layout<decltype(segment.layout)>) {
          std::vector<kvilt::page_id>& table = p.tables[G];
          table.clear();  // all segments with a table have the same
          const kvilt::idx width = caches_.template group<int(G)>().bytes().table_width;
          for (kvilt::idx page = 0; page < width; ++page)
            table.push_back(
                kvilt::page_id(segment.layout.locate(sequence_.slot, 0, page * segment.layout.page_rows({})).page));
        }
      });
  }

  template <class View>
  void run(const kvilt::host& exec, const View& view, const kvilt::step& step, int layer, float* q, const float* k,
           const float* v, float* out) {
    const auto q_rows = [&](float* from) { return kvilt::packed_rows(from, shape_.q_heads, shape_.head_dim); };
    const auto kv_rows = [&](const float* from) { return kvilt::packed_rows(from, shape_.kv_heads, shape_.head_dim); };
    kvilt::append(exec, view, step, q_rows(q), kv_rows(k), kv_rows(v), shape_.layers[std::size_t(layer)].turn);
    attention_[std::size_t(layer)](exec, view, step, q_rows(q), q_rows(out));
  }

  session_shape shape_;
  std::vector<Attention> attention_;
  counting_heap heap_;
  set caches_;
  std::vector<layer_ranges> scales_;  // of each layer, where formats have static ones
  std::vector<unsigned char> workspace_;
  kvilt::sequence sequence_;
  std::vector<planned_step> planned_;
};

}  // namespace example
