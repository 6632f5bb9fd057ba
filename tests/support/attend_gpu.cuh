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
  // As floats, packed. `wrong` says what was written and should not, or the other way round: all numbers of the first
  // `tokens` tokens should, no gap, and nothing after them.
  std::vector<float> get(std::string& wrong, idx tokens) const {
    const std::vector<T> all = there_.get();
    std::vector<float> numbers(std::size_t(tokens_ * heads_ * dim_));
    std::vector<bool> written(all.size());
    T never;
    std::memset(&never, 0xff, sizeof(T));
    each([&](std::size_t packed, std::size_t at) {
      numbers[packed] = kvilt::load(all[at]);
      written[at] = packed < std::size_t(tokens * heads_ * dim_);
      if (written[at] && wrong.empty() && std::memcmp(&all[at], &never, sizeof(T)) == 0)
        wrong = "number " + std::to_string(packed) + " of the output was not written";
    });
    for (std::size_t i = 0; i < all.size() && wrong.empty(); ++i)
      if (!written[i] && std::memcmp(&all[i], &never, sizeof(T)) != 0)
        wrong = "beside the output's rows something was written, at element " + std::to_string(i);
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

template <class Text, class Tried>
attention_case case_of(const Text& text, const kept_by& kept, const attend_shape& shape, const Tried& t) {
  attention_case c;
  c.kept = kept, c.shape = shape, c.items = text.items(), c.means = t.means;
  c.rows = [&text](const kvilt::step_item& item, int head) { return rows_of(text.view(), item, head); };
  std::ostringstream name;
  name << kept.name << "; " << shape.what << ": batch of " << shape.batch.size() << ", " << shape.kv_heads
       << " KV heads x " << shape.group;
  c.name = name.str();
  return c;
}

// One call of attention over a text: everything on the device, and what should come of it.
template <class Q, class Out, class Text, class Variant, class Positions = kvilt::text_positions>
class trial {
  using host_view = std::remove_cvref_t<decltype(std::declval<const Text&>().view())>;
  using view_type = decltype(std::declval<const mirror&>()(std::declval<host_view>()));
  using attention_type = kvilt::attention<Variant, Positions>;

 public:
  trial(const Text& text, const kept_by& kept, const attend_shape& shape, const tried<Variant, Positions>& t = {})
      : trial(text, case_of(text, kept, shape, t), t) {}
  trial(const Text& text, const attention_case& c, const tried<Variant, Positions>& t = {})
      : c_(c),
        there_(copies(text, t)),
        view_(there_(text.view())),
        attention_(there_.moved(t.variant), c.shape.scale, there_.moved(t.positions)),
        q_(c.q_rows(), c.shape.q_heads(), c.kept.k_dim, c.shape.head_gap, c.shape.token_gap),
        out_(c.q_rows(), c.shape.q_heads(), c.kept.v_dim, c.shape.head_gap, c.shape.token_gap),
        lse_(c.q_rows(), c.shape.q_heads(), 1, 0, c.shape.token_gap),
        batch_(c.items, c.shape.q_heads()),
        workspace_(kvilt::workspace_bytes(kvilt::gpu(), view_, int(c.items.size()), c.shape.q_heads(),
                                          batch_.said().most_queries)) {
    c_.kept.within_of_many = many_within_on_device<Q>(text.view()), c_.kept.lse_within_of_many = 4e-2;
    c_.rounding = rounding_of<Out>();
    if (c_.q.empty()) c_.q = random_tensor(8, c.q_rows(), c.shape.q_heads(), c.kept.k_dim).data;
    q_.put(c_.q);
    plan(kvilt::gpu());
  }

  // Plans the step: there, from arrays, or here, item by item.
  void plan(const kvilt::gpu& exec) {
    step_ = planned_there() ? kvilt::plan(exec, view_, batch_.said(), workspace_.span())
                            : device_step_of(exec, c_.items, view_, c_.shape.q_heads(), workspace_.span());
  }
  void launch(const kvilt::gpu& exec, bool with_lse = true) const { launch(exec, view_, step_, with_lse); }
  void launch(const kvilt::gpu& exec, const view_type& view, const kvilt::device_step& s, bool with_lse = true) const {
    attention_(exec, view, s, q_.read(), out_.rows(), with_lse ? lse() : kvilt::natural_lse{});
  }
  // What the kernels launched so far have written, of `tokens` rows of Q.
  answers collect(idx tokens, bool with_lse = true) const {
    must(cudaGetLastError(), "a launch");
    must(cudaDeviceSynchronize(), "a kernel");
    answers a;
    a.out = out_.get(a.wrong, tokens);
    a.lse = lse_.get(a.wrong, with_lse ? tokens : 0);
    if (a.wrong.empty() && !workspace_.guarded()) a.wrong = "memory before or after the workspace was written";
    return a;
  }
  answers run(bool with_lse = true, const kvilt::gpu& exec = {}) const {
    poison();
    launch(exec, with_lse);
    return collect(c_.q_rows(), with_lse);
  }
  void poison() const { out_.poison(), lse_.poison(); }

  // What is wrong with answers, in words; empty if nothing.
  std::string wrong(const answers& a) const {
    return a.wrong.empty() ? differences(c_, a.out, a.lse) : c_.name + ": " + a.wrong;
  }
  // Where the plan has other items than the host.
  std::string wrong_plan() const {
    std::vector<kvilt::step_item> items(c_.items.size());
    must(cudaMemcpy(items.data(), step_.items, items.size() * sizeof(items[0]), cudaMemcpyDeviceToHost), "items");
    const auto same = [](const kvilt::step_item& a, const kvilt::step_item& b) {
      return a.sequence == b.sequence && a.new_tokens == b.new_tokens && a.queries == b.queries &&
             a.n.before == b.n.before && a.n.after == b.n.after && a.n.body_before == b.n.body_before &&
             a.n.body_after == b.n.body_after && (a.queries == 0 || a.q_row == b.q_row) &&
             (a.new_tokens == 0 || a.kv_row == b.kv_row);
    };
    for (std::size_t i = 0; i < items.size(); ++i)
      if (!same(items[i], c_.items[i])) return c_.name + ": item " + std::to_string(i) + " is planned otherwise";
    return {};
  }

  attention_case& asked() { return c_; }
  const view_type& view() const { return view_; }
  const attention_type& attention() const { return attention_; }
  const kvilt::device_step& step() const { return step_; }
  batch_on_device& batch() { return batch_; }
  std::span<unsigned char> workspace() const { return workspace_.span(); }
  const device_rows<Q>& q() const { return q_; }
  const device_rows<Out>& out() const { return out_; }
  kvilt::natural_lse lse() const { return {lse_.rows().data, lse_.rows().token_stride}; }

 private:
  static mirror copies(const Text& text, const tried<Variant, Positions>& t) {
    mirror there;
    for (const auto& [block, bytes] : text.blocks()) there.add(block, bytes);
    for (const auto& [block, bytes] : t.arrays) there.add(block, bytes);
    return there;
  }
  bool planned_there() const { return c_.shape.lengths_on_device && !c_.kept.tail; }

  attention_case c_;
  mirror there_;
  view_type view_;
  attention_type attention_;
  device_rows<Q> q_;
  device_rows<Out> out_;
  device_rows<float> lse_;
  batch_on_device batch_;
  device_array<unsigned char> workspace_;
  kvilt::device_step step_;
};

// What is wrong with attention over one text, in words; empty if nothing. Done again, over other scratch, without a
// log-sum-exp, and beginning early it gives the same bits.
template <class Q, class Out, class Text, class V, class P>
std::string wrong_attention(const Text& text, const kept_by& kept, const attend_shape& shape, const tried<V, P>& t) {
  trial<Q, Out, Text, V, P> one(text, kept, shape, t);
  const std::string name = one.asked().name + ": ";
  const answers got = one.run();
  std::string wrong = one.wrong_plan();
  if (wrong.empty()) wrong = one.wrong(got);
  if (!wrong.empty()) return wrong;
  must(cudaMemset(one.step().scratch, 0x7f, one.step().scratch_bytes), "other scratch");
  if (!one.run().same_as(got)) return name + "other bits when it is done again";
  const answers alone = one.run(false);
  if (!alone.wrong.empty()) return name + alone.wrong;
  if (!same_bits(alone.out, got.out)) return name + "other bits without a log-sum-exp";
  return one.run(true, kvilt::gpu().with_early_reads()).same_as(got) ? "" : name + "other bits when it reads early";
}

// Items of so many query rows that blocks take them: whole prompts, chunks behind a text, queries fewer than new tokens;
// beside others.
inline std::vector<attend_shape> prompts(int number) {
  if (number % 2 == 0)
    return {{"prompts", 2, 4, {{0, 700}, {45, 1}, {130, 577}, {}, padded, {600, 9}, {3, 640, 590}}, 0, 8, 24}};
  return {{"a prompt", 5, 3, {{number % 3, 450 + number}}, 0.21f, 0, 0, false}};
}

// Kernel `number` of some: every shape that falls to it.
template <class Q = float, class Out = float, class Policy, class Tried = tried<>>
void check_attention(int number, const Policy& policy, const Tried& t = {}) {
  const kept_by kept = filled_cache<Policy>::kept(policy);
  kvilt::rope turn{};
  if constexpr (requires { t.positions.turn; }) turn = t.positions.turn;
  std::vector<attend_shape> shapes = shapes_for(number, kept, t.own_queries);
  using view_type = kvilt::view_of<kvilt::memory_space::device, Policy>;
  if (kvilt::detail::taken_by_blocks<view_type>() && !t.own_queries)
    for (attend_shape& shape : prompts(number)) shapes.push_back(std::move(shape));
  for (const attend_shape& shape : shapes) {
    const filled_cache<Policy> text(policy, shape, turn);
    CHECK(wrong_attention<Q, Out>(text, kept, shape, t) == "");
  }
}

}  // namespace support
