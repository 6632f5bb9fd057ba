#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/types.hpp>

#include <algorithm>
#include <span>
#include <vector>

namespace kvilt::inline KVILT_ABI {

/// What one layer of a group keeps: KV heads of a layer of the model, from `first_head` on, as many as the group has.
/// A whole layer is its number.
struct layer_part {
  constexpr layer_part(int layer_number, int first = 0) : layer(layer_number), first_head(first) {}

  int layer = 0;
  int first_head = 0;
};

/// Some KV heads of a layer that follow each other, and what belongs to them in the layer's tensors.
struct head_range {
  int first = 0;
  int count = 0;
  int total = 0;  // of the layer

  /// Their share of K or V: [tokens][total][dim].
  template <class T>
  rows<T> kv(const rows<T>& all) const {
    check();
    detail::expects(all.heads == total, "K or V has ", all.heads, " heads; the layer has ", total);
    return part(all, 1);
  }
  /// The query heads that read them, of Q or the output: [tokens][q heads][dim].
  template <class T>
  rows<T> queries(const rows<T>& all) const {
    return part(all, ratio(all.heads));
  }
  /// How many these are, of `q_heads`.
  int queries(int q_heads) const { return count * ratio(q_heads); }
  natural_lse queries(natural_lse all, int q_heads) const {
    if (all) all.data += idx(first) * ratio(q_heads);
    return all;
  }

 private:
  void check() const {
    detail::expects(first >= 0 && count >= 1 && first <= idx(total) - count, count, " KV heads from head ", first,
                    " on of ", total, "; at least 1 among them is needed");
  }
  int ratio(int q_heads) const {
    check();
    detail::expects(q_heads > 0 && q_heads % total == 0, q_heads, " query heads over ", total,
                    " KV heads; a positive multiple is needed");
    return q_heads / total;
  }
  template <class T>
  rows<T> part(const rows<T>& all, int per_head) const {
    // NOTE: null stays null, so that the verbs still see it.
    T* const data = all.data ? all.at(0, first * per_head) : nullptr;
    return {data, all.token_stride, all.head_stride, count * per_head, all.dim};
  }
};

/// Where some heads of a layer are kept: in which group, as its which layer.
struct layer_share {
  int group = 0;
  int layer = 0;
  head_range heads;
};

namespace detail {

/// From a layer of the model to what is kept of it, in the order of its heads.
class layer_map {
 public:
  void add(int group, std::span<const layer_part> parts, int kv_heads, int k_dim, int v_dim) {
    expects(!parts.empty(), "group ", group, " has no layers; at least 1 is needed");
    expects(kv_heads >= 1, "group ", group, " has ", kv_heads, " KV heads; at least 1 is needed");
    int number = 0;
    for (const layer_part& p : parts) {
      expects(p.layer >= 0 && p.first_head >= 0, "group ", group, " keeps KV head ", p.first_head, " of layer ",
              p.layer, "; neither may be negative");
      parts_.push_back({p.layer, k_dim, v_dim, {group, number++, {p.first_head, kv_heads, 0}}});
    }
  }

  /// Ends the additions. Every head of every layer is kept once, and rows of a layer are equally long.
  void close() {
    std::sort(parts_.begin(), parts_.end(), [](const part& a, const part& b) {
      return a.layer != b.layer ? a.layer < b.layer : a.share.heads.first < b.share.heads.first;
    });
    for (std::size_t i = 0; i < parts_.size(); ++i) follow(i ? &parts_[i - 1] : nullptr, parts_[i]);
    first_.push_back(shares_.size());
    for (int layer = 0; layer < layers(); ++layer) {
      const std::size_t from = first_[std::size_t(layer)], to = first_[std::size_t(layer) + 1];
      const head_range last = shares_[to - 1].heads;
      for (std::size_t i = from; i < to; ++i) shares_[i].heads.total = last.first + last.count;
    }
    parts_.clear();
  }

  int layers() const { return first_.empty() ? 0 : int(first_.size()) - 1; }
  std::span<const layer_share> at(int layer) const {
    expects(layer >= 0 && layer < layers(), "layer ", layer, "; the set has layers 0 to ", layers() - 1);
    const std::size_t from = first_[std::size_t(layer)];
    return std::span(shares_).subspan(from, first_[std::size_t(layer) + 1] - from);
  }

 private:
  struct part {
    int layer = 0;
    int k_dim = 0, v_dim = 0;
    layer_share share;
  };

  void follow(const part* before, const part& p) {
    const bool same_layer = before && before->layer == p.layer;
    if (!same_layer) {
      const int next = before ? before->layer + 1 : 0;
      expects(p.layer == next, "layer ", next, " is in no group, but layer ", p.layer, " is in group ", p.share.group);
      first_.push_back(shares_.size());
    }
    const idx head = same_layer ? idx(before->share.heads.first) + before->share.heads.count : 0;
    expects(p.share.heads.first <= head, "layer ", p.layer, ": KV head ", head, " is in no group");
    expects(p.share.heads.first >= head, "layer ", p.layer, ": KV head ", p.share.heads.first, " is in group ",
            same_layer ? before->share.group : 0, " and in group ", p.share.group);
    expects(!same_layer || (before->k_dim == p.k_dim && before->v_dim == p.v_dim), "layer ", p.layer, ": rows have ",
            p.k_dim, " and ", p.v_dim, " numbers in group ", p.share.group, ", and others in another");
    expects(head + p.share.heads.count < idx(1) << 31, "layer ", p.layer, " has ", head + p.share.heads.count,
            " KV heads; fewer than 2^31 are supported");
    shares_.push_back(p.share);
  }

  std::vector<part> parts_;  // until closed
  std::vector<layer_share> shares_;
  std::vector<std::size_t> first_;  // [layers + 1]: the first of each layer's shares
};

}  // namespace detail
}  // namespace kvilt::inline KVILT_ABI
