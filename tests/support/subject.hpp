#pragma once

#include "support/memory.hpp"
#include "support/oracle.hpp"

#include <kvilt/kvilt.hpp>

#include <memory>
#include <string>
#include <vector>

namespace support {

using kvilt::host;
using kvilt::idx;
using kvilt::sequence;

// How a row has been kept: once in 16 bit, once in the body's format, or the one and then the other.
enum class kept_as { exact, body, body_of_exact };

// A cache of any policy behind one face, so that a test is compiled once and run over all of them.
class subject {
 public:
  virtual ~subject() = default;

  int k_dim = 0, v_dim = 0;
  int sinks = 0, exact_sinks = 0, tail = 0;
  idx width = 0;  // of the window; 0: there is none
  bool paged = false;
  bool integers = false;  // K or V may be multiplied as integers
  std::string name;

  virtual const kvilt::cache_shape& shape() const = 0;
  virtual const kvilt::budget& bytes() const = 0;
  virtual const test_memory& memory() const = 0;
  virtual int free_sequences() const = 0;
  virtual idx free_pages() const = 0;
  virtual idx free_tokens() const = 0;
  virtual idx max_length() const = 0;
  virtual int page_rows() const = 0;

  virtual sequence open() = 0;
  virtual void close(sequence) = 0;
  virtual idx length(sequence) const = 0;
  virtual void reserve(sequence, idx tokens) = 0;
  virtual bool try_reserve(sequence, idx tokens) = 0;
  virtual void truncate(sequence, idx length) = 0;
  virtual std::size_t workspace_bytes(const host&, int sequences) const = 0;
  virtual kvilt::step begin(const host&, std::span<const sequence>, std::span<const int> new_tokens,
                            std::span<unsigned char> workspace) = 0;
  virtual void commit(const kvilt::step&, std::span<const int> accepted) = 0;
  virtual void cancel() = 0;
  virtual void append(const host&, int layer, const kvilt::step&, kvilt::rows<const float> k,
                      kvilt::rows<const float> v) const = 0;
  virtual void attend(const host&, int layer, const kvilt::step&, kvilt::rows<const float> q, kvilt::rows<float> out,
                      kvilt::natural_lse) const = 0;

  virtual sequence fork(const host&, sequence) = 0;
  virtual void reorder(const host&, std::span<const sequence>, std::span<const int> parents) = 0;
  virtual void keep_path(const host&, int layer, const kvilt::step&, std::span<const int> nodes,
                         std::span<const int> accepted) const = 0;
  // Every byte of the rows that a sequence's next query sees, in all layers.
  virtual std::vector<unsigned char> live_bytes(sequence) = 0;

  // What the cache should say a row is.
  virtual std::vector<double> kept_k(const float* row, kept_as) const = 0;
  virtual std::vector<double> kept_v(const float* row, kept_as) const = 0;
};

namespace detail {

template <class Format>
void round_trip(const Format& f, std::vector<float>& row) {
  std::vector<unsigned char> codes(std::size_t(f.code_bytes())), params(std::size_t(f.param_bytes()) + 1);
  const kvilt::row_ref r{codes.data(), params.data(), 0};
  f.encode(row.data(), r);
  kvilt::decode_row(f, r, row.data());
}

template <class Exact, class Body>
std::vector<double> kept(const Exact& exact, const Body& body, const float* row, kept_as how) {
  using rotation = kvilt::rotation_of<Body>;
  std::vector<float> rounded(row, row + body.dim());
  rotation::forward(rounded.data(), body.dim());
  if (how != kept_as::body) round_trip(exact, rounded);
  if (how != kept_as::exact) round_trip(body, rounded);
  std::vector<double> in_text(rounded.begin(), rounded.end());
  if constexpr (!std::is_same_v<rotation, kvilt::no_rotation>) walsh(in_text);
  return in_text;
}

template <class View>
void add_live_bytes(const View& view, const kvilt::step_item& item, std::vector<unsigned char>& all) {
  view.each([&](const auto& seg) {
    for (int head = 0; head < view.kv_heads(); ++head)
      for (idx i = 0; i < seg.retention.count(item.n, item.sequence, head); ++i) {
        const kvilt::kept_row kept = seg.retention.at(item.n, item.sequence, head, i);
        const kvilt::place p = seg.layout.locate(item.sequence, head, kept.slot);
        const kvilt::row_ref k = seg.k_row(p, head), v = seg.v_row(p, head);
        all.insert(all.end(), k.codes, k.codes + seg.k.code_bytes());
        all.insert(all.end(), k.params, k.params + seg.k.param_bytes());
        all.insert(all.end(), v.codes, v.codes + seg.v.code_bytes());
        all.insert(all.end(), v.params, v.params + seg.v.param_bytes());
      }
  });
}

}  // namespace detail

template <class Policy>
class subject_of final : public subject {
 public:
  subject_of(const Policy& policy, const kvilt::cache_shape& shape, unsigned char fill = 0)
      : policy_(policy), memory_(fill), cache_(shape, kvilt::memory<kvilt::memory_space::host>::from(memory_), policy) {
    k_dim = policy.k.dim(), v_dim = policy.v.dim();
    sinks = Policy::sinks, exact_sinks = Policy::exact_sinks, tail = Policy::tail;
    width = policy.retention.width();
    integers = integer_codes<typename Policy::k_format>() || integer_codes<typename Policy::v_format>();
    paged = !kvilt::fixed_layout<typename Policy::layout_type>;
    name = std::string(policy.layout.name()) + " K " + kvilt::name_of(policy.k) + " of " + std::to_string(k_dim) +
           ", V " + kvilt::name_of(policy.v) + " of " + std::to_string(v_dim) + ", page " +
           std::to_string(page_rows()) + ", window " + std::to_string(width) + ", sinks " + std::to_string(sinks) +
           " (" + std::to_string(exact_sinks) + " in 16 bit), tail " + std::to_string(tail);
  }

  const kvilt::cache_shape& shape() const override { return cache_.shape(); }
  const kvilt::budget& bytes() const override { return cache_.bytes(); }
  const test_memory& memory() const override { return memory_; }
  int free_sequences() const override { return cache_.free_sequences(); }
  idx free_pages() const override { return cache_.free_pages(); }
  idx free_tokens() const override { return cache_.free_tokens(); }
  idx max_length() const override { return cache_.max_length(); }
  int page_rows() const override { return kvilt::detail::arrangement<Policy>(policy_, cache_.shape()).page_rows; }

  sequence open() override { return cache_.open(); }
  void close(sequence s) override { cache_.close(s); }
  idx length(sequence s) const override { return cache_.length(s); }
  void reserve(sequence s, idx tokens) override { cache_.reserve(s, tokens); }
  bool try_reserve(sequence s, idx tokens) override { return cache_.try_reserve(s, tokens); }
  void truncate(sequence s, idx length) override { cache_.truncate(s, length); }
  std::size_t workspace_bytes(const host& exec, int n) const override { return cache_.workspace_bytes(exec, n); }
  kvilt::step begin(const host& exec, std::span<const sequence> sequences, std::span<const int> new_tokens,
                    std::span<unsigned char> workspace) override {
    return cache_.begin(exec, sequences, new_tokens, workspace);
  }
  void commit(const kvilt::step& s, std::span<const int> accepted) override { cache_.commit(s, accepted); }
  void cancel() override { cache_.cancel(); }
  void append(const host& exec, int layer, const kvilt::step& s, kvilt::rows<const float> k,
              kvilt::rows<const float> v) const override {
    kvilt::append(exec, cache_.view(layer), s, k, v);
  }
  void attend(const host& exec, int layer, const kvilt::step& s, kvilt::rows<const float> q, kvilt::rows<float> out,
              kvilt::natural_lse lse) const override {
    kvilt::attention{kvilt::causal{}}(exec, cache_.view(layer), s, q, out, lse);
  }

  sequence fork(const host& exec, sequence s) override { return cache_.fork(exec, s); }
  void reorder(const host& exec, std::span<const sequence> sequences, std::span<const int> parents) override {
    cache_.reorder(exec, sequences, parents);
  }
  void keep_path(const host& exec, int layer, const kvilt::step& s, std::span<const int> nodes,
                 std::span<const int> accepted) const override {
    kvilt::keep_path(exec, cache_.view(layer), s, nodes, accepted);
  }
  std::vector<unsigned char> live_bytes(sequence s) override {
    const int none[] = {0};
    std::vector<unsigned char> workspace(cache_.workspace_bytes(host(), 1)), all;
    const kvilt::step empty = cache_.begin(host(), {&s, 1}, none, workspace);
    for (int layer = 0; layer < shape().layers; ++layer)
      detail::add_live_bytes(cache_.view(layer), empty.items[0], all);
    cache_.cancel();
    return all;
  }

  std::vector<double> kept_k(const float* row, kept_as how) const override {
    return detail::kept(policy_.k_exact(), policy_.k, row, how);
  }
  std::vector<double> kept_v(const float* row, kept_as how) const override {
    return detail::kept(policy_.v_exact(), policy_.v, row, how);
  }

 private:
  Policy policy_;
  test_memory memory_;
  kvilt::cache<Policy> cache_;
};

template <class Policy>
std::unique_ptr<subject> make_subject(const Policy& policy, const kvilt::cache_shape& shape, unsigned char fill = 0) {
  return std::make_unique<subject_of<Policy>>(policy, shape, fill);
}

}  // namespace support
