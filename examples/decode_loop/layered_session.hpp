#pragma once

#include "session.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace example {

// The layers of a session that share a window.
struct layers_of_window {
  int window;
  std::vector<int> layers;
};

inline std::vector<layers_of_window> split_by_window(const session_shape& shape) {
  std::vector<layers_of_window> groups;
  for (int i = 0; i < static_cast<int>(shape.layers.size()); ++i) {
    const int window = shape.layers[std::size_t(i)].window;
    auto group = std::ranges::find(groups, window, &layers_of_window::window);
    if (group == groups.end()) group = groups.insert(groups.end(), {window, {}});
    group->layers.push_back(i);
  }
  return groups;
}

inline session_shape only(const session_shape& shape, const layers_of_window& group) {
  session_shape part = shape;
  part.layers.clear();
  for (const int i : group.layers) part.layers.push_back(shape.layers[std::size_t(i)]);
  return part;
}

// One sequence of a model whose layers keep different tokens: a cache for each kind, all of the same length.
class layered_session final : public session {
 public:
  struct part {
    std::vector<int> layers;  // of the model, in the order of the part's own
    std::unique_ptr<session> cache;
  };

  explicit layered_session(std::vector<part> parts) : parts_(std::move(parts)) {
    for (part& p : parts_)
      for (int own = 0; own < static_cast<int>(p.layers.size()); ++own) {
        const auto layer = std::size_t(p.layers[std::size_t(own)]);
        places_.resize(std::max(places_.size(), layer + 1));
        places_[layer] = {p.cache.get(), own};
      }
  }

  void begin(int tokens, int step_tokens) override {
    for (part& p : parts_) p.cache->begin(tokens, step_tokens);
  }
  void attend(const kvilt::host& exec, int layer, float* q, const float* k, const float* v, float* out) override {
    const place& at = places_[std::size_t(layer)];
    at.cache->attend(exec, at.layer, q, k, v, out);
  }
  void commit() override {
    for (part& p : parts_) p.cache->commit();
  }
  void cancel() override {
    for (part& p : parts_) p.cache->cancel();
  }
  void restart() override {
    for (part& p : parts_) p.cache->restart();
  }
  kvilt::idx length() const override { return parts_.front().cache->length(); }
  int max_step() const override { return parts_.front().cache->max_step(); }
  kvilt::idx cache_bytes() const override {
    kvilt::idx bytes = 0;
    for (const part& p : parts_) bytes += p.cache->cache_bytes();
    return bytes;
  }

 private:
  struct place {
    session* cache = nullptr;
    int layer = 0;
  };

  std::vector<part> parts_;
  std::vector<place> places_;  // of each layer of the model
};

}  // namespace example
