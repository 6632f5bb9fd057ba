#pragma once

#include "support/catch.hpp"
#include "support/memory.hpp"
#include "support/tensors.hpp"

// Caches of tile formats against the oracle, a token's place in tail or body taken from the policy's words.
namespace support {

// Rows of one layer as a policy should keep them. [tokens][heads][dim]
template <class Format>
class kept_rows {
 public:
  kept_rows(const Format& format, const tensor<float>& given) : format_(format), exact_(given), body_(given) {
    for (idx t = 0; t < exact_.tokens(); ++t)
      for (int head = 0; head < exact_.heads; ++head) rotation::forward(exact_.rows().at(t, head), exact_.dim);
    for (float& x : exact_.data) x = kvilt::from_fp16(kvilt::to_fp16(x));
  }
  // Tokens [first, last), whole tiles, go to the body.
  void move(idx first, idx last) {
    const int dim = exact_.dim;
    std::vector<float> tile(std::size_t(Format::rows * dim));
    std::vector<unsigned char> codes(std::size_t(format_.code_bytes())), params(std::size_t(format_.param_bytes()) + 1);
    for (; first < last; first += Format::rows)
      for (int head = 0; head < exact_.heads; ++head) {
        for (int i = 0; i < Format::rows; ++i)
          std::copy_n(exact_.rows().at(first + i, head), dim, tile.data() + i * dim);
        format_.encode(tile.data(), {codes.data(), params.data(), 0});
        for (int i = 0; i < Format::rows; ++i)
          kvilt::decode_row(format_, {codes.data(), params.data(), i}, body_.rows().at(first + i, head));
      }
  }
  std::vector<double> row(idx token, int head, bool in_body) const {
    std::vector<double> in_text = widened((in_body ? body_ : exact_).row(token, head));
    if constexpr (!std::is_same_v<rotation, kvilt::no_rotation>) walsh(in_text);
    return in_text;
  }

 private:
  using rotation = kvilt::rotation_of<Format>;

  Format format_;
  tensor<float> exact_, body_;
};

// A text in a cache of tiles and the same text as the policy's words have it.
template <class Policy>
class tiled_text {
 public:
  static constexpr int tail = Policy::tail, sinks = Policy::sinks, tile = Policy::tile;
  static constexpr int heads = 2, group = 2, layers = 2;

  tiled_text(const Policy& p, idx most_tokens)
      : policy_(p),
        owner_({.layers = layers, .kv_heads = heads, .sequences = 2, .tokens = 2 * most_tokens, .max_step = 5},
               kvilt::memory<kvilt::memory_space::host>::from(poisoned_), p),
        name_(owner_.open()) {
    for (int layer = 0; layer < layers; ++layer) {
      k_.push_back(random_tensor(std::uint64_t(10 * layer), most_tokens, heads, p.k.dim()));
      v_.push_back(random_tensor(std::uint64_t(10 * layer + 1), most_tokens, heads, p.v.dim()));
      q_.push_back(random_tensor(std::uint64_t(10 * layer + 2), most_tokens, heads * group, p.k.dim()));
      kept_k_.emplace_back(p.k, k_.back()), kept_v_.emplace_back(p.v, v_.back());
    }
  }

  idx length() const { return owner_.length(name_); }
  // Committed tokens in the body's formats.
  idx in_body() const { return body_; }
  kvilt::cache<Policy>& owner() { return owner_; }
  kvilt::sequence name() const { return name_; }

  // A step of `count` tokens; the first difference to the oracle, or nothing.
  std::string step(int count, int accepted, int appends = 1) {
    const idx before = length(),
              body = std::max(body_, sinks + std::max<idx>(before + 1 - tail - sinks, 0) / tile * tile);
    std::vector<unsigned char> workspace(owner_.workspace_bytes(host(), 1), 0xff);
    owner_.reserve(name_, count);
    const kvilt::step s = owner_.begin(host(), {&name_, 1}, {&count, 1}, workspace);
    std::string wrong;
    for (int layer = 0; layer < layers; ++layer) {
      for (int i = 0; i < appends; ++i)
        kvilt::append(host(), owner_.view(layer), s, from(k_[std::size_t(layer)], before),
                      from(v_[std::size_t(layer)], before));
      kept_k_[std::size_t(layer)].move(body_, body), kept_v_[std::size_t(layer)].move(body_, body);
      if (wrong.empty()) wrong = compare(layer, s, body);
    }
    owner_.commit(s, {&accepted, 1});
    if (accepted > 0) body_ = body;
    return wrong;
  }

  // Goes on in a fork.
  void fork() {
    const kvilt::sequence child = owner_.fork(host(), name_);
    owner_.close(name_);
    name_ = child;
  }
  // A step of two drafts, the last token again and the next one, of which the second is kept.
  void step_of_drafts() {
    const idx before = length(),
              body = std::max(body_, sinks + std::max<idx>(before + 1 - tail - sinks, 0) / tile * tile);
    const int two[] = {2}, second[] = {1}, one[] = {1};
    std::vector<unsigned char> workspace(owner_.workspace_bytes(host(), 1), 0xff);
    owner_.reserve(name_, 2);
    const kvilt::step s = owner_.begin(host(), {&name_, 1}, two, workspace);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      kvilt::append(host(), owner_.view(int(layer)), s, from(k_[layer], before - 1), from(v_[layer], before - 1));
      kvilt::keep_path(host(), owner_.view(int(layer)), s, second, one);
      kept_k_[layer].move(body_, body), kept_v_[layer].move(body_, body);
    }
    owner_.commit(s, one);
    body_ = body;
  }

  void truncate(idx length) {
    owner_.truncate(name_, length);
    body_ = std::max<idx>(sinks, std::min(body_, length));
  }

 private:
  static kvilt::rows<const float> from(const tensor<float>& t, idx token) {
    return {t.rows().at(token, 0), idx(t.heads) * t.dim, t.dim, t.heads, t.dim};
  }
  std::string compare(int layer, const kvilt::step& s, idx body) const {
    answer<> got(s.q_rows, heads * group, policy_.v.dim());
    const idx before = s.items[0].n.before, after = s.items[0].n.after;
    const tensor<float>& q = q_[std::size_t(layer)];
    kvilt::attention{kvilt::causal{}}(host(), owner_.view(layer), s, from(q, before), got.out.rows(), got.lse_rows());
    for (int head = 0; head < heads * group; ++head) {
      std::vector<std::vector<double>> k, v;
      std::vector<oracle_key> keys;
      for (idx t = 0; t < after; ++t) {
        const bool left = t >= sinks && t < body;
        k.push_back(kept_k_[std::size_t(layer)].row(t, head / group, left));
        v.push_back(kept_v_[std::size_t(layer)].row(t, head / group, left));
      }
      for (idx t = 0; t < after; ++t) keys.push_back({k[std::size_t(t)], v[std::size_t(t)], t});
      for (idx i = 0; i < s.q_rows; ++i) {
        const oracle_state want = oracle(widened(q.row(before + i, head)), keys, 1 / std::sqrt(double(q.dim)),
                                         std::size_t(policy_.v.dim()), band(before + i, 1000));
        const float lse = got.lse_of(i, head);
        const tolerance close = within(host(), owner_.view(layer));
        std::string wrong = difference(got.out.row(i, head), want.out, close);
        if (wrong.empty()) wrong = difference(std::span(&lse, 1), std::vector<double>{want.lse}, close);
        if (!wrong.empty())
          return "layer " + std::to_string(layer) + ", query " + std::to_string(before + i) + ", head " +
                 std::to_string(head) + ": " + wrong;
      }
    }
    return {};
  }

  Policy policy_;
  test_memory poisoned_{0xff};
  kvilt::cache<Policy> owner_;
  kvilt::sequence name_;
  idx body_ = sinks;
  std::vector<tensor<float>> k_, v_, q_;
  std::vector<kept_rows<typename Policy::k_format>> kept_k_;
  std::vector<kept_rows<typename Policy::v_format>> kept_v_;
};

template <class Policy>
void in_steps(const Policy& p, idx most_tokens = 60) {
  for (const int chunk : {1, 2, 5}) {
    INFO("sinks " << Policy::sinks << ", steps of " << chunk);
    tiled_text<Policy> text(p, most_tokens);
    while (text.length() + chunk <= most_tokens) REQUIRE(text.step(chunk, chunk) == "");
    CHECK(text.in_body() >= most_tokens - chunk - Policy::tail - Policy::tile);
  }
}

// Steps of any size of which any part is accepted, appended once or twice, and some that fail.
template <class Policy>
void in_disorder(const Policy& p, idx most_tokens = 60) {
  tiled_text<Policy> text(p, most_tokens);
  dice d(3);
  std::vector<unsigned char> workspace(text.owner().workspace_bytes(host(), 1));
  while (text.length() < most_tokens - 6) {
    const int count = d.below(6), accepted = d.below(count + 1);
    if (d.below(3) == 0) {
      const kvilt::sequence name = text.name();
      text.owner().reserve(name, count);
      text.owner().begin(host(), {&name, 1}, {&count, 1}, workspace);
      text.owner().cancel();
    }
    if (d.below(4) == 0) text.fork();
    if (text.length() > Policy::sinks && d.below(4) == 0) text.step_of_drafts();
    REQUIRE(text.step(count, accepted, 1 + d.below(2)) == "");
  }
}

}  // namespace support
