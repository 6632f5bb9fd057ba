#pragma once

#include "support/attention_case.hpp"
#include "support/foreign.hpp"
#include "support/memory.hpp"
#include "support/tensors.hpp"

#include <kvilt/kvilt.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace support {

using memory_blocks = std::vector<std::pair<const unsigned char*, std::size_t>>;

// Rows of K and V of a batch's new tokens. Tokens are of different sizes, so that no scale is another's.
inline tensor<float> uneven_rows(std::uint64_t seed, idx tokens, int heads, int dim) {
  tensor<float> t = random_tensor(seed, tokens, heads, dim);
  for (std::size_t row = 0; row < t.data.size() / std::size_t(dim); ++row) {
    const float size = 0.3f + 0.4f * float(mixed({seed, row}) % 5);
    for (std::size_t d = 0; d < std::size_t(dim); ++d) t.data[row * std::size_t(dim) + d] *= size;
  }
  return t;
}

// The token of a batch whose K and V are NaN; none where the sequence is below 0.
struct nan_token {
  int sequence = -1;
  idx position = 0;
};

// A cache of any policy that the host has filled over poison: tokens come in chunks, all sequences' in turn, so that
// pages are mixed; the last step is begun, appended and left so. Its second layer is of use. One token may be NaN.
template <class Policy>
class filled_cache {
  static constexpr bool tabled = !kvilt::fixed_layout<typename Policy::layout_type>;

 public:
  using view_type = kvilt::view_of<kvilt::memory_space::host, Policy>;

  // `heavy`: so many tokens at the beginning of each text have keys of ones and values of zeros, and all others' values
  // are about 1, as real models' first tokens are that queries look at for want of others.
  filled_cache(const Policy& policy, const attend_shape& shape, const kvilt::rope& turn = {}, nan_token nan = {},
               unsigned char fill = 0xff, idx heavy = 0)
      : policy_(policy),
        heavy_(heavy),
        memory_(fill),
        owner_(room(policy, shape), kvilt::memory<kvilt::memory_space::host>::from(memory_), policy) {
    give_scales(shape.kv_heads);
    std::vector<int> left;
    for (const prompt& p : shape.batch) {
      if (p.padding()) continue;
      open_.push_back(owner_.open());
      left.push_back(int(p.before));
    }
    constexpr int chunk = 37;
    while (std::any_of(left.begin(), left.end(), [](int n) { return n > 0; })) {
      std::vector<int> now;
      for (std::size_t i = 0; i < left.size(); ++i) {
        now.push_back(std::min(left[i], std::max(1, chunk - int(i) % 5)));
        left[i] -= now.back();
      }
      owner_.commit(step_of(now, turn, nan));
    }
    std::vector<int> fresh;
    for (const prompt& p : shape.batch)
      if (!p.padding()) fresh.push_back(p.fresh);
    const kvilt::step s = step_of(fresh, turn, nan);
    add_items(s, shape);
    spoil_table();
  }
  filled_cache(const filled_cache&) = delete;
  filled_cache& operator=(const filled_cache&) = delete;

  view_type view() const { return owner_.view(1); }
  const std::vector<kvilt::step_item>& items() const { return items_; }
  memory_blocks blocks() const {
    memory_blocks all(memory_.blocks().begin(), memory_.blocks().end());
    for (const std::vector<float>* scales : {&k_scales_, &v_scales_})
      all.emplace_back(reinterpret_cast<const unsigned char*>(scales->data()), scales->size() * sizeof(float));
    return all;
  }

  static kept_by kept(const Policy& policy) {
    kept_by k;
    k.k_dim = policy.k.dim(), k.v_dim = policy.v.dim();
    k.page = tabled ? policy.layout.page_rows({1, 64, 1}) : 64;
    k.width = policy.retention.width(), k.sinks = Policy::sinks, k.tail = Policy::tail > 0;
    k.name = std::string(policy.layout.name()) + (tabled ? " of " + std::to_string(k.page) : std::string()) + ", K " +
             kvilt::name_of(policy.k) + " of " + std::to_string(k.k_dim) + ", V " + kvilt::name_of(policy.v) + " of " +
             std::to_string(k.v_dim) + ", window " + std::to_string(k.width) + ", sinks " +
             std::to_string(Policy::sinks) + " (" + std::to_string(Policy::exact_sinks) + " in 16 bit), tail " +
             std::to_string(Policy::tail);
    k.within = within_on_device(view_type());
    return k;
  }

 private:
  static kvilt::cache_shape room(const Policy& policy, const attend_shape& shape) {
    kvilt::cache_shape room;
    room.layers = 2, room.kv_heads = shape.kv_heads;
    idx longest = 1;
    int most = 37, sequences = 0;
    const idx page = tabled ? policy.layout.page_rows({1, 64, 1}) : 1;
    for (const prompt& p : shape.batch) {
      if (p.padding()) continue;
      ++sequences;
      longest = std::max(longest, p.after());
      most = std::max(most, p.fresh);
      room.tokens += kvilt::round_up(p.after() + 1, page);
    }
    room.sequences = std::max(sequences, 1);
    room.max_length = longest + 2;
    room.max_step = most;
    if (!tabled) room.tokens = room.sequences * room.max_length;
    return room;
  }

  void give_scales(int heads) {
    if constexpr (kvilt::cache<Policy>::has_static_scales) {
      for (int head = 0; head < heads && kvilt::has_static_scale<typename Policy::k_format>; ++head)
        k_scales_.push_back(0.03f + 0.005f * float(head % 3));
      if (kvilt::has_static_scale<typename Policy::v_format>) v_scales_.push_back(0.04f);
      for (int layer = 0; layer < 2; ++layer) owner_.set_scales(layer, k_scales_, v_scales_);
    }
  }

  // Begins a step and appends its tokens.
  kvilt::step step_of(const std::vector<int>& tokens, const kvilt::rope& turn, nan_token nan) {
    for (std::size_t i = 0; i < tokens.size(); ++i) owner_.reserve(open_[i], tokens[i]);
    workspace_.assign(owner_.workspace_bytes(kvilt::host(), int(tokens.size())), 0xff);
    const kvilt::step s = owner_.begin(kvilt::host(), open_, tokens, workspace_);
    tensor<float> k = uneven_rows(++seed_, s.kv_rows, owner_.shape().kv_heads, policy_.k.dim());
    tensor<float> v = uneven_rows(++seed_, s.kv_rows, owner_.shape().kv_heads, policy_.v.dim());
    for (int i = 0; heavy_ > 0 && i < s.size; ++i)
      for (int row = 0; row < s.items[i].new_tokens; ++row)
        for (int head = 0; head < k.heads; ++head) {
          const bool first = s.items[i].n.before + row < heavy_;
          float* const key = k.rows().at(s.items[i].kv_row + row, head);
          float* const value = v.rows().at(s.items[i].kv_row + row, head);
          if (first) std::fill_n(key, k.dim, 1.0f);
          for (int d = 0; d < v.dim; ++d) value[d] = first ? 0 : 1 + value[d];
        }
    if (nan.sequence >= 0) {
      const kvilt::step_item& item = s.items[nan.sequence];
      const idx nth = nan.position - item.n.before;
      for (int head = 0; head < k.heads && nth >= 0 && nth < item.new_tokens; ++head) {
        std::fill_n(k.rows().at(item.kv_row + nth, head), k.dim, NAN);
        std::fill_n(v.rows().at(item.kv_row + nth, head), v.dim, NAN);
      }
    }
    kvilt::append(kvilt::host(), owner_.view(1), s, k.rows(), v.rows(), turn);
    return s;
  }

  void add_items(const kvilt::step& s, const attend_shape& shape) {
    idx q_row = 0;
    int next = 0;
    for (const prompt& p : shape.batch) {
      kvilt::step_item item;
      if (p.padding())
        item.sequence = -1;
      else
        item = s.items[next++];
      item.queries = p.asked();
      item.q_row = q_row;
      q_row += item.queries;
      items_.push_back(item);
    }
  }

  // Entries that name no page hold garbage of two kinds.
  void spoil_table() {
    if constexpr (tabled) {
      const auto [block, bytes] = memory_.blocks().front();
      auto* const ids = reinterpret_cast<kvilt::page_id*>(block);
      for (std::size_t i = 0; i < bytes / sizeof(kvilt::page_id); i += 2)
        if (ids[i] < 0) ids[i] = 0x7ffffff0;
    }
  }

  Policy policy_;
  idx heavy_;
  test_memory memory_;
  std::vector<float> k_scales_, v_scales_;
  kvilt::cache<Policy> owner_;
  std::vector<kvilt::sequence> open_;
  std::vector<unsigned char> workspace_;
  std::vector<kvilt::step_item> items_;
  std::uint64_t seed_ = 70;
};

// The same without an owner: pages of one layer, whose ids are named by `Layout`'s own lists in any order.
template <class Layout, class K, class V = K>
class filled_pages {
 public:
  using segment = kvilt::segment<Layout, kvilt::interval<kvilt::part::body, kvilt::keep_all>, K, V>;
  using view_type = kvilt::view<kvilt::memory_space::host, segment>;

  filled_pages(const K& k, const V& v, int page_rows, const attend_shape& shape,
               page_order order = page_order::shuffled, std::uint64_t seed = 71)
      : page_rows_(page_rows), seed_(seed) {
    std::vector<idx> used;
    std::vector<int> tokens;
    for (const prompt& p : shape.batch)
      if (!p.padding()) {
        tokens.push_back(int(p.after()));
        used.push_back(kvilt::ceil_div(p.after(), page_rows));
        width_ = std::max(width_, used.back() + 1);
      }
    const int sequences = int(used.size());
    table_ = foreign_table(sequences, width_, used, order);
    for (int s = 0; s < sequences; ++s) {
      first_.push_back(int(listed_.size()));
      for (idx i = 0; i < used[std::size_t(s)]; ++i) listed_.push_back(table_[std::size_t(s * width_ + i)]);
    }
    first_.push_back(int(listed_.size()));
    const kvilt::detail::storage storage =
        kvilt::detail::make_storage(k, v, shape.kv_heads, std::max<idx>(sequences * width_, 1), page_rows);
    bytes_ = kvilt::buffer<kvilt::memory_space::host>(kvilt::host_memory(), std::size_t(storage.layer_bytes()));
    std::fill_n(bytes_.data(), bytes_.bytes(), static_cast<unsigned char>(0xff));
    segment seg;
    seg.layout = layout(), seg.k = k, seg.v = v, seg.planes = storage.at(bytes_.data());
    view_ = view_type(shape.kv_heads, seg);
    fill(tokens, shape);
    add_items(shape);
  }
  filled_pages(const filled_pages&) = delete;
  filled_pages& operator=(const filled_pages&) = delete;

  const view_type& view() const { return view_; }
  const std::vector<kvilt::step_item>& items() const { return items_; }
  memory_blocks blocks() const {
    const auto block = [](const auto& list) {
      return std::pair(reinterpret_cast<const unsigned char*>(list.data()), list.size() * sizeof(list[0]));
    };
    return {{bytes_.data(), bytes_.bytes()}, block(table_), block(listed_), block(first_)};
  }
  static kept_by kept(const K& k, const V& v, int page_rows) {
    kept_by kept;
    kept.k_dim = k.dim(), kept.v_dim = v.dim(), kept.page = page_rows;
    kept.name = std::string(Layout::name()) + " of " + std::to_string(page_rows) + " without an owner, K " +
                kvilt::name_of(k) + " of " + std::to_string(kept.k_dim) + ", V " + kvilt::name_of(v) + " of " +
                std::to_string(kept.v_dim);
    kept.within = within_on_device(view_type());
    return kept;
  }

 private:
  Layout layout() const {
    if constexpr (std::is_same_v<Layout, kvilt::paged_list>)
      return {listed_.data(), first_.data(), kvilt::fast_divisor(page_rows_)};
    else
      return {table_.data(), width_};
  }

  void fill(const std::vector<int>& tokens, const attend_shape& shape) {
    const planned_step s(kvilt::host(), std::vector<idx>(tokens.size()), tokens, {}, view_.k_dim(), view_.v_dim());
    const tensor<float> k = uneven_rows(seed_, s->kv_rows, shape.kv_heads, view_.k_dim());
    const tensor<float> v = uneven_rows(seed_ + 1, s->kv_rows, shape.kv_heads, view_.v_dim());
    kvilt::append(kvilt::host(), view_, s, k.rows(), v.rows());
  }
  void add_items(const attend_shape& shape) {
    idx q_row = 0, kv_row = 0;
    int next = 0;
    for (const prompt& p : shape.batch) {
      const kvilt::step_item item = item_of(p, p.padding() ? -1 : next++, kv_row, q_row);
      q_row += item.queries, kv_row += item.new_tokens;
      items_.push_back(item);
    }
  }

  int page_rows_;
  std::uint64_t seed_;
  idx width_ = 1;
  std::vector<kvilt::page_id> table_, listed_;
  std::vector<int> first_;
  kvilt::buffer<kvilt::memory_space::host> bytes_{kvilt::host_memory(), 0};
  view_type view_;
  std::vector<kvilt::step_item> items_;
};

}  // namespace support
