#pragma once

#include "session.hpp"

#include <kvilt/kvilt.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
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
  kvilt::cache_shape shape{
      .layers = s.layers, .kv_heads = s.kv_heads, .sequences = 1, .tokens = s.tokens, .max_step = s.max_step};
  if constexpr (gives_pages_back<Policy>) {
    const kvilt::budget whole = kvilt::plan_bytes(policy, shape);
    const kvilt::idx pages = (whole.bytes_per_sequence - whole.exact_sequence_bytes) / s.layers / whole.body_page_bytes;
    shape.max_length = 2 * s.tokens;  // decoding goes on after the evaluation
    shape.tokens = pages * policy.layout.page_rows({});
  }
  return shape;
}

template <class Policy, class Attention>
class cached_session final : public session {
 public:
  cached_session(const session_shape& shape, const Policy& policy, const Attention& attention)
      : shape_(shape),
        attention_(attention),
        cache_(cache_shape_for(policy, shape), kvilt::memory<kvilt::memory_space::host>::from(heap_), policy),
        workspace_(cache_.workspace_bytes(shape.exec, 1)),
        sequence_(cache_.open()) {
    const kvilt::idx planned = kvilt::plan_bytes(policy, cache_.shape()).bytes();
    if (heap_.asked() != planned)
      throw std::logic_error("the cache took " + std::to_string(heap_.asked()) + " bytes; planned were " +
                             std::to_string(planned));
  }

  void begin(int tokens, int step_tokens) override {
    cache_.reserve(sequence_, tokens);
    items_.clear();
    kvilt::in_chunks(tokens, step_tokens, [&](kvilt::idx first, int count) {
      // NOTE: a step is plain data, so all but the last are ended before any layer has seen them.
      if (first > 0) cache_.commit(step_);
      step_ = cache_.begin(shape_.exec, std::span(&sequence_, 1), std::span(&count, 1), workspace_);
      items_.push_back(step_.items[0]);
    });
  }

  void attend(const kvilt::host& exec, int layer, float* q, const float* k, const float* v, float* out) override {
    const auto view = cache_.view(layer);
    const kvilt::idx q_row = kvilt::idx(shape_.q_heads) * shape_.head_dim;
    const kvilt::idx kv_row = kvilt::idx(shape_.kv_heads) * shape_.head_dim;
    const auto q_rows = [&](float* from) { return kvilt::packed_rows(from, shape_.q_heads, shape_.head_dim); };
    const auto kv_rows = [&](const float* from) { return kvilt::packed_rows(from, shape_.kv_heads, shape_.head_dim); };
    kvilt::step step = step_;
    for (const kvilt::step_item& item : items_) {
      step.items = &item;
      step.q_rows = step.kv_rows = item.new_tokens;
      kvilt::append(exec, view, step, q_rows(q), kv_rows(k), kv_rows(v), shape_.turn);
      attention_(exec, view, step, q_rows(q), q_rows(out));
      q += item.new_tokens * q_row, out += item.new_tokens * q_row;
      k += item.new_tokens * kv_row, v += item.new_tokens * kv_row;
    }
  }

  void commit() override { cache_.commit(step_); }

  kvilt::idx length() const override { return cache_.length(sequence_); }
  int max_step() const override { return shape_.max_step; }
  bool replays() const override { return !gives_pages_back<Policy>; }

  void make_room(int tokens) override {
    if constexpr (!Policy::retention_type::slides)
      cache_.truncate(sequence_, std::min(length(), std::max<kvilt::idx>(shape_.tokens - tokens, 0)));
  }

  void restart() override {
    cache_.close(sequence_);
    sequence_ = cache_.open();
  }

  kvilt::idx cache_bytes() const override { return heap_.asked() - cache_.bytes().table_bytes; }

 private:
  session_shape shape_;
  Attention attention_;
  counting_heap heap_;
  kvilt::cache<Policy> cache_;
  std::vector<unsigned char> workspace_;
  kvilt::sequence sequence_;
  kvilt::step step_;                     // the newest planned
  std::vector<kvilt::step_item> items_;  // of every planned step
};

}  // namespace example
