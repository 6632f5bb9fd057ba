#pragma once

#include "session.hpp"
#include "static_scales.hpp"

#include <kvilt/kvilt.hpp>
#include <kvilt/tiers/restore.hpp>
#include <kvilt/tiers/save.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace example {

// Memory of a resource, keeping count of what it was asked for.
template <kvilt::memory_space Space>
class counting_memory {
 public:
  explicit counting_memory(const kvilt::memory<Space>& from) : from_(from) {}

  void* allocate(std::size_t bytes, std::size_t align) {
    asked_ += kvilt::idx(bytes);
    return from_.allocate(bytes, align);
  }
  void deallocate(void* p, std::size_t bytes, std::size_t align) noexcept { from_.deallocate(p, bytes, align); }
  kvilt::idx asked() const { return asked_; }

 private:
  kvilt::memory<Space> from_;
  kvilt::idx asked_ = 0;
};

// Throws where caches were given other bytes than were planned for them.
inline void check_planned(kvilt::idx asked, kvilt::idx planned) {
  if (asked != planned)
    throw std::logic_error("the caches took " + std::to_string(asked) + " bytes; planned were " +
                           std::to_string(planned));
}

// A window over pages from a pool: those that it has left serve the tokens to come.
template <class Policy>
inline constexpr bool gives_pages_back =
    Policy::retention_type::slides && !kvilt::fixed_layout<typename Policy::layout_type>;

inline kvilt::set_shape set_shape_for(const session_shape& s) {
  return {.sequences = s.sequences,
          .tokens = s.tokens * s.sequences,
          .max_length = s.tokens,
          .max_step = s.max_step,
          .prefixes = s.prefixes};
}

// Tokens are evicted from layers that see all.
template <class Policy>
inline constexpr bool evicts = kvilt::evicts_tokens<typename Policy::retention_type>;

// Layers of the session's model that keep their tokens by this policy.
template <class Policy>
kvilt::layer_group<Policy> group_for(const Policy& policy, const std::vector<int>& layers, const session_shape& s) {
  kvilt::layer_group<Policy> group{{layers.begin(), layers.end()}, s.kv_heads, policy};
  if constexpr (gives_pages_back<Policy>) {
    const kvilt::budget whole = kvilt::plan_bytes(
        policy,
        {.layers = 1, .kv_heads = s.kv_heads, .tokens = s.tokens, .max_length = s.tokens, .max_step = s.max_step});
    group.tokens = whole.tokens_per_sequence * s.sequences;
  }
  if constexpr (evicts<Policy>) group.tokens = s.evict.most_rows(s.tokens, s.max_step) * s.sequences;
  return group;
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

// Calls body.operator()<G>() for each of `Count` groups.
template <std::size_t Count, class Body>
void each_group(Body&& body) {
  [&]<std::size_t... G>(std::index_sequence<G...>) {
    (body.template operator()<G>(), ...);
  }
  (std::make_index_sequence<Count>());
}

// Sequences of a model: a group of caches, one for the layers of each policy, behind one handle.
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
        sequences_(std::size_t(shape.sequences)) {
    for (kvilt::sequence& s : sequences_) s = caches_.open();
    check_planned(heap_.asked(), kvilt::plan_bytes(set_shape_for(shape), groups...).bytes());
    each_group<group_count>([&]<std::size_t G>() { set_scales<G>(std::get<G>(std::tie(groups...)).policy); });
    each_group<group_count>([&]<std::size_t G>() { begin_sums<G>(); });
  }

  void begin(int tokens, int step_tokens) override {
    planned_.clear();
    if (tokens <= step_tokens) sums_before_ = sums_, moments_before_ = moments_;  // a single step may be cancelled
    kvilt::in_chunks(tokens, step_tokens, [&](kvilt::idx first, int count) {
      // NOTE: a step is plain data, so all but the last are ended before any layer has seen them.
      if (first > 0) caches_.commit(planned_.back().steps);
      caches_.reserve(selected(), count);
      planned_step& p = planned_.emplace_back();
      p.steps = caches_.begin(shape_.exec, std::span(&selected(), 1), std::span(&count, 1), workspace_);
      each_group<group_count>([&]<std::size_t G>() { keep<G>(p); });
    });
  }

  void attend(const kvilt::host& exec, int layer, float* q, const float* k, const float* v, float* out) override {
    const kvilt::idx q_row = kvilt::idx(shape_.q_heads) * shape_.head_dim;
    const kvilt::idx kv_row = kvilt::idx(shape_.kv_heads) * shape_.head_dim;
    const auto group = std::size_t(caches_.shares(layer).front().group);
    int left = 0;  // tokens of the planned steps from here on
    for (const planned_step& p : planned_) left += p.items[group].new_tokens;
    for (const planned_step& p : planned_) {
      typename set::step_type steps = p.steps;
      const int tokens = p.items[group].new_tokens;
      left -= tokens;
      for (std::size_t g = 0; g < group_count; ++g) steps[g].items = &p.items[g];
      caches_.visit(layer, steps, [&](const auto& view, const kvilt::step& step, const kvilt::head_range&) {
        const std::vector<kvilt::page_id>& table = p.tables[group];
        run(exec, table.empty() ? view : with_table(view, table), step, {layer, left, &p == &planned_[0]}, q, k, v,
            out);
      });
      q += tokens * q_row, out += tokens * q_row;
      k += tokens * kv_row, v += tokens * kv_row;
    }
  }

  void commit() override {
    caches_.commit(planned_.back().steps);
    each_group<group_count>([&]<std::size_t G>() { evict<G>(); });
  }
  void cancel() override {
    caches_.cancel();
    sums_ = sums_before_;
    moments_ = moments_before_;
  }

  kvilt::idx length() const override { return caches_.length(selected()); }
  int max_step() const override { return shape_.max_step; }

  void restart() override {
    caches_.close(selected());
    selected() = caches_.open();
    if (sums_) sums_->clear(row(selected()));
    if (!moments_.empty()) moments_[selected_].clear();
  }

  void select(int sequence) override { selected_ = std::size_t(sequence); }
  void fork(int to) override {
    kvilt::sequence& child = sequences_[std::size_t(to)];
    caches_.close(child);
    child = caches_.fork(shape_.exec, selected());
    if (sums_) sums_->copy(row(selected()), row(child));
    if (!moments_.empty()) moments_[std::size_t(to)] = moments_[selected_];
  }
  kvilt::idx restart_with(std::span<const int> prompt) override {
    if constexpr (finds_prompts) {
      caches_.close(selected());
      const kvilt::opened_sequence opened = caches_.open(prompt);
      selected() = opened.name;
      return opened.tokens;
    } else {
      throw std::logic_error("a prompt is looked for in a cache that keeps no prefixes");
    }
  }
  void name(std::span<const int> tokens) override {
    if constexpr (finds_prompts) caches_.name(selected(), tokens);
  }
  shared_pages pages() const override {
    shared_pages all;
    each_group<group_count>([&]<std::size_t G>() {
      const auto& cache = caches_.template group<int(G)>();
      const kvilt::idx bytes = cache.bytes().body_page_bytes * (by_head<G> ? 1 : cache.shape().layers);
      kvilt::idx alone = 0;
      for (const kvilt::sequence& s : sequences_)
        alone += std::ranges::count_if(table_of<G>(s), [](kvilt::page_id p) { return p >= 0; });
      const kvilt::idx pages = alone > 0 ? cache.pages().used : 0;
      all.pages += pages, all.bytes += pages * bytes;
      all.alone_pages += alone, all.alone_bytes += alone * bytes;
    });
    return all;
  }

  void save(const kvilt::host& exec, const std::string& path, const kvilt::text_labels& labels) const override {
    if constexpr (evicts_any)
      throw std::invalid_argument("sums of attention by which tokens are evicted are not saved");
    else
      kvilt::save(exec, caches_, selected(), path, labels);
  }
  void load(const kvilt::host& exec, const kvilt::sequence_file<>& file, const kvilt::text_labels& wanted) override {
    if constexpr (evicts_any) {
      throw std::invalid_argument("a text from which tokens are to be evicted is not loaded");
    } else {
      caches_.close(selected());
      try {
        selected() = kvilt::restore(exec, caches_, file, wanted);
      } catch (...) {
        selected() = caches_.open();
        throw;
      }
    }
  }
  void truncate(kvilt::idx length) override {
    caches_.truncate(selected(), length);
    each_group<group_count>([&]<std::size_t G>() { cut_sums<G>(); });
  }

  kvilt::idx cache_bytes() const override {
    return heap_.asked() - caches_.bytes().table_bytes() - caches_.bytes().list_bytes();
  }

 private:
  using set = kvilt::cache_set<Policies...>;
  static constexpr std::size_t group_count = sizeof...(Policies);
  static constexpr bool finds_prompts = (kvilt::keeps_prefixes<Policies> && ...);
  static constexpr bool evicts_any = (evicts<Policies> || ...);
  template <std::size_t G>
  static constexpr bool by_head =
      kvilt::tabled_by_head<typename std::tuple_element_t<G, std::tuple<Policies...>>::layout_type>;

  kvilt::sequence& selected() { return sequences_[selected_]; }
  const kvilt::sequence& selected() const { return sequences_[selected_]; }

  // What a step needs beyond the next one's beginning: the owner's items and, where windows give pages back, its tables.
  // Such pages serve later steps while other layers still need them for earlier ones; a page lies elsewhere in each
  // layer, so nothing is overwritten.
  struct planned_step {
    typename set::step_type steps;
    std::array<kvilt::step_item, group_count> items;
    std::array<std::vector<kvilt::page_id>, group_count> tables;  // of each [table width], or empty
  };

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
    if constexpr (gives_pages_back<std::tuple_element_t<G, std::tuple<Policies...>>>) {
      static_assert(!by_head<G>, "with_table binds one table for all heads");
      p.tables[G] = table_of<G>(selected());
    }
  }

  // Empty where places come by arithmetic; by head, a table behind the other.
  template <std::size_t G>
  std::vector<kvilt::page_id> table_of(const kvilt::sequence& s) const {
    std::vector<kvilt::page_id> table;
    const auto& cache = caches_.template group<int(G)>();
    for (int layer = 0; layer < (by_head<G> ? cache.shape().layers : 1); ++layer) {
      const std::size_t before = table.size();
      cache.view(layer).each([&](const auto& segment) {
        if constexpr (!kvilt::fixed_layout<decltype(segment.layout)>) {
          table.resize(before);  // all segments with a table have the same
          for (int head = 0; head < (by_head<G> ? cache.shape().kv_heads : 1); ++head)
            for (kvilt::idx page = 0; page < cache.bytes().table_width; ++page)
              table.push_back(
                  kvilt::page_id(segment.layout.locate(cache.row(s), head, page * segment.layout.page_rows({})).page));
        }
      });
    }
    return table;
  }

  int row(const kvilt::sequence& s) const { return caches_.template group<0>().row(s); }

  template <std::size_t G>
  void begin_sums() {
    if constexpr (evicts<std::tuple_element_t<G, std::tuple<Policies...>>>) {
      const int layers = caches_.template group<int(G)>().shape().layers;
      // NOTE: by head, all that others have left may be one head's.
      sums_.emplace(layers, shape_.kv_heads, shape_.sequences,
                    by_head<G> ? shape_.tokens : shape_.evict.most_rows(shape_.tokens, shape_.max_step));
      if (std::holds_alternative<expected_queries>(shape_.evict.score))
        moments_.assign(sequences_.size(), kvilt::query_moments(layers, shape_.q_heads, shape_.head_dim));
    }
  }

  template <std::size_t G>
  void cut_sums() {
    if constexpr (evicts<std::tuple_element_t<G, std::tuple<Policies...>>>) {
      const auto& cache = caches_.template group<int(G)>();
      std::vector<kvilt::idx> kept;
      for (int layer = 0; layer < cache.shape().layers; ++layer)
        for (int head = 0; head < shape_.kv_heads; ++head) kept.push_back(cache.kept(selected(), layer, head));
      sums_->truncate(row(selected()), kept);
    }
  }

  // After a block: as many rows as may stay, in every layer of a group.
  template <std::size_t G>
  void evict() {
    if constexpr (evicts<std::tuple_element_t<G, std::tuple<Policies...>>>) {
      const auto& cache = caches_.template group<int(G)>();
      const eviction& rule = shape_.evict;
      if (cache.kept(selected()) <= rule.keep) return;
      const int group = shape_.q_heads / shape_.kv_heads;
      const auto stay = [&](const auto&... how_many) {
        return std::visit(
            [&](const auto& score) {
              return kvilt::places_to_keep(cache, selected(), score_of<G>(score), *sums_, group, how_many...,
                                           rule.ends);
            },
            rule.score);
      };
      if constexpr (by_head<G>) {
        const auto rows = stay(rule.counts(cache.shape().layers, shape_.tokens), rule.heads.share);
        caches_.template keep<int(G)>(shape_.exec, selected(), rows.places, rows.sizes);
        sums_->keep(row(selected()), rows.places, rows.sizes);
      } else {
        const std::vector<int> places = stay(rule.keep);
        caches_.template keep<int(G)>(shape_.exec, selected(), places);
        sums_->keep(row(selected()), places);
      }
    }
  }

  // What rows of a group are ranked by.
  template <std::size_t G, class Score>
  const Score& score_of(const Score& score) {
    return score;
  }
  template <std::size_t G>
  kvilt::expected_attention score_of(const expected_queries& of) {
    kvilt::query_moments& moments = moments_[selected_];
    for (int layer = 0; layer < caches_.layers(); ++layer) {
      const kvilt::layer_share& share = caches_.shares(layer).front();
      if (std::size_t(share.group) == G)
        moments.expect(share.layer, shape_.layers[std::size_t(layer)].turn, length(), of.ahead);
    }
    return {&moments, shape_.scale};
  }

  // Where a step stands among those that were planned together.
  struct planned_at {
    int layer;
    int left;    // tokens of the steps after it
    bool first;  // none is before it
  };

  // What the last queries of a block give to the rows that there are.
  template <class View>
  void add_sums(const kvilt::host& exec, const View& view, const kvilt::step& step, const planned_at& at, float* q) {
    const auto [asked, running] =
        std::visit([](const auto& score) { return std::pair(score.queries(), score.running); }, shape_.evict.score);
    const int tokens = step.items[0].new_tokens, last = std::min(asked - std::min(asked, at.left), tokens);
    const bool first = at.first || asked <= at.left + tokens;
    if (last > 0)
      sums_->add(exec, attention_[std::size_t(at.layer)], caches_.shares(at.layer).front().layer, view, step,
                 kvilt::packed_rows(q, shape_.q_heads, shape_.head_dim),
                 kvilt::natural_lse{lse_.data(), shape_.q_heads}, last, !running && first);
  }

  template <class View>
  void run(const kvilt::host& exec, const View& view, const kvilt::step& step, const planned_at& at, float* q,
           const float* k, const float* v, float* out) {
    const auto layer = std::size_t(at.layer);
    const auto q_rows = [&](float* from) { return kvilt::packed_rows(from, shape_.q_heads, shape_.head_dim); };
    const auto kv_rows = [&](const float* from) { return kvilt::packed_rows(from, shape_.kv_heads, shape_.head_dim); };
    if constexpr (View::has_gaps)
      if (!moments_.empty())
        moments_[selected_].add(caches_.shares(at.layer).front().layer, q_rows(q), step.items[0].new_tokens);
    kvilt::append(exec, view, step, q_rows(q), kv_rows(k), kv_rows(v), shape_.layers[layer].turn);
    if constexpr (View::has_gaps) {
      lse_.resize(std::size_t(step.q_rows * shape_.q_heads));
      attention_[layer](exec, view, step, q_rows(q), q_rows(out), {lse_.data(), shape_.q_heads});
      add_sums(exec, view, step, at, q);
    } else {
      attention_[layer](exec, view, step, q_rows(q), q_rows(out));
    }
  }

  session_shape shape_;
  std::vector<Attention> attention_;
  counting_memory<kvilt::memory_space::host> heap_{kvilt::host_memory()};
  set caches_;
  std::vector<layer_ranges> scales_;  // of each layer, where formats have static ones
  std::vector<unsigned char> workspace_;
  std::vector<kvilt::sequence> sequences_;
  std::size_t selected_ = 0;
  std::vector<planned_step> planned_;
  std::optional<kvilt::column_sums> sums_, sums_before_;        // where tokens are evicted
  std::vector<kvilt::query_moments> moments_, moments_before_;  // of each sequence, where expected attention asks
  std::vector<float> lse_;                                      // [query rows][q_heads]
};

}  // namespace example
