#include "support/catch.hpp"
#include "support/memory.hpp"
#include "support/tensors.hpp"

namespace {

using namespace kvilt;
using namespace support;

// One byte a number and one scale for 4 tokens: about the simplest tile format that there can be.
template <int D = dynamic>
struct tile_of_4 : extent<D> {
  using extent<D>::extent;
  static constexpr int rows = 4;

  int dim() const { return this->get(); }
  int code_bytes() const { return rows * dim(); }
  int param_bytes() const { return int(sizeof(float)); }
  void encode(const float* x, row_ref to) const {
    float scale = 1e-20f;
    for (int i = 0; i < rows * dim(); ++i) scale = std::max(scale, std::abs(x[i]) / 127);
    std::memcpy(to.params, &scale, sizeof(scale));
    for (int i = 0; i < rows * dim(); ++i) to.codes[i] = static_cast<unsigned char>(int(x[i] / scale) + 128);
  }
  template <int N>
  void decode(row_ref from, int first, float (&out)[N]) const {
    float scale;
    std::memcpy(&scale, from.params, sizeof(scale));
    const unsigned char* codes = from.codes + from.row * dim() + first;
    for (int i = 0; i < N; ++i) out[i] = scale * float(int(codes[i]) - 128);
  }
};

constexpr int heads = 2, group = 2, layers = 2, most_tokens = 60;

// Rows of one layer as a policy should keep them. [tokens][heads][dim]
template <class Format>
class kept_rows {
 public:
  kept_rows(const Format& format, const tensor<float>& given) : format_(format), exact_(given), body_(given) {
    for (float& x : exact_.data) x = from_fp16(to_fp16(x));
  }
  // Tokens [first, last), whole tiles, go to the body.
  void move(idx first, idx last) {
    const int dim = exact_.dim;
    std::vector<float> tile(std::size_t(Format::rows * dim));
    std::vector<unsigned char> codes(std::size_t(format_.code_bytes())), params(std::size_t(format_.param_bytes()) + 1);
    for (; first < last; first += Format::rows)
      for (int head = 0; head < heads; ++head) {
        for (int i = 0; i < Format::rows; ++i)
          std::copy_n(exact_.rows().at(first + i, head), dim, tile.data() + i * dim);
        format_.encode(tile.data(), {codes.data(), params.data(), 0});
        for (int i = 0; i < Format::rows; ++i)
          decode_row(format_, {codes.data(), params.data(), i}, body_.rows().at(first + i, head));
      }
  }
  std::vector<double> row(idx token, int head, bool in_body) const {
    return widened((in_body ? body_ : exact_).row(token, head));
  }

 private:
  Format format_;
  tensor<float> exact_, body_;
};

// A text in a cache of tiles and the same text as the policy's words have it.
template <class Policy>
class tiled_text {
 public:
  static constexpr int tail = Policy::tail, sinks = Policy::sinks, tile = Policy::tile;

  explicit tiled_text(const Policy& p)
      : policy_(p),
        owner_({.layers = layers, .kv_heads = heads, .sequences = 2, .tokens = 2 * most_tokens, .max_step = 5},
               memory<memory_space::host>::from(poisoned_), p),
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
  cache<Policy>& owner() { return owner_; }
  sequence name() const { return name_; }

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
        append(host(), owner_.view(layer), s, from(k_[std::size_t(layer)], before),
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
    const sequence child = owner_.fork(host(), name_);
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
      append(host(), owner_.view(int(layer)), s, from(k_[layer], before - 1), from(v_[layer], before - 1));
      keep_path(host(), owner_.view(int(layer)), s, second, one);
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
  static rows<const float> from(const tensor<float>& t, idx token) {
    return {t.rows().at(token, 0), idx(t.heads) * t.dim, t.dim, t.heads, t.dim};
  }
  std::string compare(int layer, const kvilt::step& s, idx body) const {
    answer<> got(s.q_rows, heads * group, policy_.v.dim());
    const idx before = s.items[0].n.before, after = s.items[0].n.after;
    const tensor<float>& q = q_[std::size_t(layer)];
    attention{causal{}}(host(), owner_.view(layer), s, from(q, before), got.out.rows(), got.lse_rows());
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
  cache<Policy> owner_;
  sequence name_;
  idx body_ = sinks;
  std::vector<tensor<float>> k_, v_, q_;
  std::vector<kept_rows<typename Policy::k_format>> kept_k_;
  std::vector<kept_rows<typename Policy::v_format>> kept_v_;
};

template <class Policy>
void in_steps(const Policy& p) {
  for (const int chunk : {1, 2, 5}) {
    INFO("sinks " << Policy::sinks << ", steps of " << chunk);
    tiled_text<Policy> text(p);
    while (text.length() + chunk <= most_tokens) REQUIRE(text.step(chunk, chunk) == "");
    CHECK(text.in_body() >= most_tokens - chunk - Policy::tail - Policy::tile);
  }
}

// Steps of any size of which any part is accepted, appended once or twice, and some that fail.
template <class Policy>
void in_disorder(const Policy& p) {
  tiled_text<Policy> text(p);
  dice d(3);
  std::vector<unsigned char> workspace(text.owner().workspace_bytes(host(), 1));
  while (text.length() < most_tokens - 6) {
    const int count = d.below(6), accepted = d.below(count + 1);
    if (d.below(3) == 0) {
      const sequence name = text.name();
      text.owner().reserve(name, count);
      text.owner().begin(host(), {&name, 1}, {&count, 1}, workspace);
      text.owner().cancel();
    }
    if (d.below(4) == 0) text.fork();
    if (text.length() > Policy::sinks && d.below(4) == 0) text.step_of_drafts();
    REQUIRE(text.step(count, accepted, 1 + d.below(2)) == "");
  }
}

template <class K, class V>
void each_policy(const K& k, const V& v) {
  in_steps(policy<paged<8>, K, V, keep_all, 0, 6>(k, v));
  in_steps(policy<paged<8>, K, V, keep_all, 2, 6>(k, v));
  in_steps(policy<paged<4>, K, V, keep_all, 3, 1>(k, v));
  in_steps(policy<contiguous, K, V, keep_all, 2, 6>(k, v));
  in_disorder(policy<paged<8>, K, V, keep_all, 2, 6>(k, v));
  in_disorder(policy<contiguous, K, V, keep_all, 0, 3>(k, v));
}

}  // namespace

TEST_CASE("tile: tokens go to the body by whole tiles, and answers are right at every length", "[cache]") {
  each_policy(tile_of_4<>(16), tile_of_4<>(24));
  each_policy(tile_of_4<>(16), q8<>(24));
  each_policy(fp32<>(24), tile_of_4<>(16));
  in_steps(policy<paged<8>, tile_of_4<16>, tile_of_4<16>, keep_all, 2, 6>());
}

TEST_CASE("tile: a sequence is cut between tiles, or in its tail", "[cache]") {
  using kv = policy<paged<8>, tile_of_4<>, tile_of_4<>, keep_all, 2, 6>;
  for (idx cut = 0; cut <= 40; ++cut) {
    tiled_text<kv> text{kv(16)};
    while (text.length() < 40) REQUIRE(text.step(5, 5) == "");
    const bool inside = cut > 2 && cut < text.in_body() && (cut - 2) % 4 != 0;
    INFO("cut to " << cut << ", " << text.in_body() << " tokens have left the tail");
    if (inside) {
      CHECK_THROWS_WITH(text.truncate(cut),
                        containing("is truncated to " + std::to_string(cut) + ", inside a tile of 4"));
      CHECK(text.length() == 40);
    } else {
      text.truncate(cut);
    }
    while (text.length() < 50) REQUIRE(text.step(2, 1) == "");
  }
}

TEST_CASE("tile: pages hold whole tiles", "[cache]") {
  using kv = policy<paged<>, tile_of_4<>, q8<>, keep_all, 0, 6>;
  CHECK_THROWS_WITH(
      plan_bytes(kv(tile_of_4<>(16), q8<>(16), {}, paged<>(6)), {.layers = 1, .kv_heads = 1, .tokens = 9}),
      containing("a page of 6 rows does not hold whole tiles of 4"));
}

TEST_CASE("tile: single rows are not appended to a tile format", "[cache]") {
  using body = segment<contiguous, interval<part::body, keep_all>, tile_of_4<>, fp32<>>;
  const tile_of_4<> k(16);
  const fp32<> v(16);
  std::vector<unsigned char> codes(16 * 16, 0xff), params(16, 0xff), values(16 * 64, 0xff);
  const auto before = std::tuple(codes, params, values);
  const geometry planes{
      {codes.data(), 256, 256, 64}, {params.data(), 16, 16, 4}, {values.data(), 1024, 1024, 64}, {}, 1};
  const auto foreign = make_view<memory_space::host>(1, body{{16}, interval<part::body, keep_all>(), k, v, planes});
  const tensor<float> rows = random_tensor(1, 3, 1, 16);
  CHECK_THROWS_WITH(append(host(), foreign, planned_step(host(), {4}, {3}, {}, 16, 16), rows.rows(), rows.rows()),
                    containing("sequence 0 appends to a tile format; its tokens come through a 16-bit tail"));
  CHECK(std::tuple(codes, params, values) == before);
  // Tiles that an engine has filled are read.
  append(host(), foreign, planned_step(host(), {4}, {0}, {}, 16, 16), rows.rows(), rows.rows());
  answer<> a(1, 1, 16);
  attention{causal{}}(host(), foreign, planned_step(host(), {0}, {0}, {1}, 16, 16), rows.rows(), a.out.rows());
}
