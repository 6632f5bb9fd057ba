#pragma once

#include "support/attention_case.hpp"
#include "support/device_steps.cuh"
#include "support/filled_cache.hpp"
#include "support/gpu.hpp"

#include <kvilt/kvilt.cuh>

#include <cmath>
#include <sstream>

// Attention on the device over caches that the host has filled, against the oracle over what their bytes say.
namespace support {

// A variant and positions, what they mean, and the arrays they refer to.
template <class Variant = kvilt::causal, class Positions = kvilt::text_positions>
struct tried {
  Variant variant{};
  meaning means = means_causal();
  memory_blocks arrays{};
  Positions positions{};
  bool own_queries = false;  // whether it can be asked only about the step's new tokens
};

template <class T>
std::pair<const unsigned char*, std::size_t> block_of(const T& list) {
  return {reinterpret_cast<const unsigned char*>(list.data()), list.size() * sizeof(list[0])};
}

// Rows of a caller's tensor on the device, with gaps that hold 0xff.
template <class T>
class device_rows {
 public:
  device_rows(idx tokens, int heads, int dim, int head_gap, int token_gap)
      : tokens_(tokens),
        heads_(heads),
        dim_(dim),
        head_stride_(dim + head_gap),
        token_stride_(heads * head_stride_ + token_gap),
        there_(std::size_t(tokens * token_stride_)) {}

  kvilt::rows<T> rows() const { return {there_.data(), token_stride_, head_stride_, heads_, dim_}; }
  kvilt::rows<const T> read() const { return {there_.data(), token_stride_, head_stride_, heads_, dim_}; }

  // `numbers` [tokens][heads][dim] are rounded to what is put there.
  void put(std::vector<float>& numbers) const {
    std::vector<T> all(there_.size());
    std::memset(all.data(), 0xff, all.size() * sizeof(T));
    each([&](std::size_t packed, std::size_t at) {
      kvilt::store(all[at], numbers[packed]);
      numbers[packed] = kvilt::load(all[at]);
    });
    there_.put(all);
  }
  // As floats, packed; `untouched` is set where a gap was written, or a row not.
  std::vector<float> get(std::string& wrong) const {
    const std::vector<T> all = there_.get();
    std::vector<float> numbers(std::size_t(tokens_ * heads_ * dim_));
    std::vector<bool> written(all.size());
    T never;
    std::memset(&never, 0xff, sizeof(T));
    each([&](std::size_t packed, std::size_t at) {
      numbers[packed] = kvilt::load(all[at]);
      written[at] = true;
      if (wrong.empty() && std::memcmp(&all[at], &never, sizeof(T)) == 0)
        wrong = "number " + std::to_string(packed) + " of the output was not written";
    });
    for (std::size_t i = 0; i < all.size() && wrong.empty(); ++i)
      if (!written[i] && std::memcmp(&all[i], &never, sizeof(T)) != 0)
        wrong = "a gap between the output's rows was written, at element " + std::to_string(i);
    if (wrong.empty() && !there_.guarded()) wrong = "memory before or after the output was written";
    return numbers;
  }
  void poison() const { there_.poison(); }

 private:
  template <class Body>
  void each(Body body) const {
    std::size_t packed = 0;
    for (idx token = 0; token < tokens_; ++token)
      for (int head = 0; head < heads_; ++head)
        for (int d = 0; d < dim_; ++d) body(packed++, std::size_t(token * token_stride_ + head * head_stride_ + d));
  }

  idx tokens_;
  int heads_, dim_;
  idx head_stride_, token_stride_;
  device_array<T> there_;
};

template <class Out>
constexpr double rounding_of() {
  return std::is_same_v<Out, kvilt::bfloat16> ? 0x1p-8 : std::is_same_v<Out, kvilt::float16> ? 0x1p-11 : 0;
}

// What came of one call.
struct answers {
  std::vector<float> out, lse;  // packed
  std::string wrong;            // memory that was touched and should not, or the other way round

  bool same_as(const answers& other) const { return same_bits(out, other.out) && same_bits(lse, other.lse); }
};

// Everything of one case that is on the device.
template <class Q, class Out, class View>
class device_case {
 public:
  device_case(attention_case& c, const View& view)
      : view_(view),
        kv_heads_(c.shape.kv_heads),
        q_heads_(c.shape.q_heads()),
        q_(c.q_rows(), q_heads_, c.kept.k_dim, c.shape.head_gap, c.shape.token_gap),
        out_(c.q_rows(), q_heads_, c.kept.v_dim, c.shape.head_gap, c.shape.token_gap),
        lse_(c.q_rows(), q_heads_, 1, 0, c.shape.token_gap),
        workspace_(kvilt::workspace_bytes(kvilt::gpu(), view, int(c.items.size()), q_heads_, most_queries(c))),
        batch_(c.items, q_heads_) {
    c.q = random_tensor(8, c.q_rows(), q_heads_, c.kept.k_dim).data;
    q_.put(c.q);
    planned_there_ = c.shape.lengths_on_device && !c.kept.tail;
    step_ = planned_there_ ? kvilt::plan(kvilt::gpu(), view_, batch_.said(), workspace_.span())
                           : device_step_of(kvilt::gpu(), c.items, view_, q_heads_, workspace_.span());
  }

  template <class Attention>
  answers run(const Attention& attention, bool with_lse = true) const {
    out_.poison(), lse_.poison();
    launch(kvilt::gpu(), attention, with_lse);
    return collect(with_lse);
  }
  template <class Attention>
  void launch(const kvilt::gpu& exec, const Attention& attention, bool with_lse = true) const {
    const kvilt::rows<float> lse = lse_.rows();
    attention(exec, view_, step_, q_.read(), out_.rows(),
              with_lse ? kvilt::natural_lse{lse.data, lse.token_stride} : kvilt::natural_lse{});
  }
  answers collect(bool with_lse = true) const {
    must(cudaGetLastError(), "a launch");
    must(cudaDeviceSynchronize(), "a kernel");
    answers a;
    a.out = out_.get(a.wrong);
    if (with_lse) a.lse = lse_.get(a.wrong);
    if (a.wrong.empty() && !workspace_.guarded()) a.wrong = "memory before or after the workspace was written";
    return a;
  }

  const View& view() const { return view_; }
  const kvilt::device_step& step() const { return step_; }
  kvilt::device_step& step() { return step_; }
  const device_rows<Q>& q() const { return q_; }
  const device_rows<Out>& out() const { return out_; }
  batch_on_device& batch() { return batch_; }
  std::span<unsigned char> workspace() const { return workspace_.span(); }
  const device_rows<float>& lse() const { return lse_; }

 private:
  static int most_queries(const attention_case& c) {
    int most = 0;
    for (const kvilt::step_item& item : c.items) most = item.queries > most ? item.queries : most;
    return most;
  }

  View view_;
  int kv_heads_, q_heads_;
  device_rows<Q> q_;
  device_rows<Out> out_;
  device_rows<float> lse_;
  device_array<unsigned char> workspace_;
  batch_on_device batch_;
  bool planned_there_ = false;
  kvilt::device_step step_;
};

template <class Text, class Tried>
attention_case case_of(const Text& text, const kept_by& kept, const attend_shape& shape, const Tried& t) {
  attention_case c;
  c.kept = kept, c.shape = shape, c.items = text.items(), c.means = t.means;
  c.rows = [&text, items = c.items](int item, int head) {
    return rows_of(text.view(), items[std::size_t(item)], head);
  };
  std::ostringstream name;
  name << kept.name << "; " << shape.what << ": batch of " << shape.batch.size() << ", " << shape.kv_heads
       << " KV heads x " << shape.group;
  c.name = name.str();
  return c;
}

template <class V, class P>
auto functor(const tried<V, P>& t, const attend_shape& shape, const mirror& there) {
  return kvilt::attention<V, P>(there.moved(t.variant), shape.scale, there.moved(t.positions));
}

// What is wrong with attention over one text, in words; empty if nothing. Without a log-sum-exp and once more it gives
// the same bits.
template <class Q, class Out, class Text, class Tried>
std::string wrong_attention(const Text& text, const kept_by& kept, const attend_shape& shape, const Tried& t) {
  mirror there;
  for (const auto& [block, bytes] : text.blocks()) there.add(block, bytes);
  for (const auto& [block, bytes] : t.arrays) there.add(block, bytes);
  attention_case c = case_of(text, kept, shape, t);
  c.rounding = rounding_of<Out>();
  const auto view = there(text.view());
  const device_case<Q, Out, std::remove_const_t<decltype(view)>> device(c, view);
  const auto attention = functor(t, shape, there);
  const answers got = device.run(attention);
  if (!got.wrong.empty()) return c.name + ": " + got.wrong;
  const std::string wrong = differences(c, got.out, got.lse);
  if (!wrong.empty()) return wrong;
  if (!device.run(attention).same_as(got)) return c.name + ": other bits when it is done again";
  const answers alone = device.run(attention, false);
  return same_bits(alone.out, got.out) ? "" : c.name + ": other bits without a log-sum-exp";
}

// Kernel `number` of some: every shape that falls to it.
template <class Q = float, class Out = float, class Policy, class Tried = tried<>>
void check_attention(int number, const Policy& policy, const Tried& t = {}) {
  const kept_by kept = filled_cache<Policy>::kept(policy);
  kvilt::rope turn{};
  if constexpr (requires { t.positions.turn; }) turn = t.positions.turn;
  for (const attend_shape& shape : shapes_for(number, kept, t.own_queries)) {
    const filled_cache<Policy> text(policy, shape, turn);
    CHECK(wrong_attention<Q, Out>(text, kept, shape, t) == "");
  }
}

}  // namespace support
