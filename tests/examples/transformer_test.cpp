#include "transformer.hpp"

#include "ranges.hpp"
#include "support/catch.hpp"
#include "support/tiny_gguf.hpp"
#include "tensor_types.hpp"

#include <kvilt/core/thread_pool.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace {

using example::gguf_file;
using example::transformer;
using example::weight_storage;

std::shared_ptr<const gguf_file> open(const support::gguf_builder& builder) {
  const std::string path = support::temporary_path("llama.gguf");
  builder.write(path);
  auto file = std::make_shared<const gguf_file>(path);
  std::filesystem::remove(path);  // the mapping stays
  return file;
}

// What the model computes, taken from the options that its file was made with.
struct reference_layer {
  int window = 0;  // tokens that a query sees; 0: all
  double rope_base = 0;
  std::vector<float> rope_factors;
};
struct reference_shape {
  int hidden, q_heads, kv_heads, head_dim, rope_dims;
  bool gemma;
  std::vector<reference_layer> layers;
};

reference_shape shape_of(const support::tiny_gguf_options& o, const gguf_file& file) {
  reference_shape s{o.hidden,
                    o.q_heads,
                    o.kv_heads,
                    o.head_dim,
                    o.rope_dims > 0 ? o.rope_dims : o.head_dim,
                    o.architecture == "gemma3",
                    {}};
  std::vector<float> factors;
  if (o.rope_factors) factors = example::read_vector(file.tensor("rope_freqs.weight"), s.rope_dims / 2);
  const int period = o.global_period > 0 ? o.global_period : 6;
  for (int i = 1; i <= o.layers; ++i) {
    const bool local = s.gemma && i % period != 0;
    if (local)
      s.layers.push_back({o.window, 10000.0, {}});
    else
      s.layers.push_back({0, static_cast<double>(o.rope_base), factors});
  }
  return s;
}

// Plain causal attention with RoPE over all that came before, or over a window of it; one for each pass.
class plain_attention {
 public:
  explicit plain_attention(const reference_shape& shape)
      : s_(shape), keys_(shape.layers.size()), values_(shape.layers.size()) {}

  template <typename T>
  void run(int layer, int tokens, T* q, T* k, const T* v, T* out) {
    const reference_layer& kind = s_.layers[size(layer)];
    std::vector<double>& keys = keys_[size(layer)];
    std::vector<double>& values = values_[size(layer)];
    const int first = static_cast<int>(keys.size()) / (s_.kv_heads * s_.head_dim);
    for (int t = 0; t < tokens; ++t) {
      for (int h = 0; h < s_.q_heads; ++h) rotate(kind, q + (t * s_.q_heads + h) * s_.head_dim, first + t);
      for (int h = 0; h < s_.kv_heads; ++h) rotate(kind, k + (t * s_.kv_heads + h) * s_.head_dim, first + t);
    }
    keys.insert(keys.end(), k, k + tokens * s_.kv_heads * s_.head_dim);
    values.insert(values.end(), v, v + tokens * s_.kv_heads * s_.head_dim);
    for (int t = 0; t < tokens; ++t) {
      const int length = first + t + 1;
      const int oldest = kind.window > 0 ? std::max(length - kind.window, 0) : 0;
      for (int h = 0; h < s_.q_heads; ++h) {
        const int at = (t * s_.q_heads + h) * s_.head_dim;
        attend(q + at, h / (s_.q_heads / s_.kv_heads), oldest, length, keys, values, out + at);
      }
    }
  }

  example::attention_fn callback() {
    return [this](int layer, int n, float* q, float* k, const float* v, float* out) { run(layer, n, q, k, v, out); };
  }

 private:
  static std::size_t size(int n) { return static_cast<std::size_t>(n); }

  template <typename T>
  void rotate(const reference_layer& kind, T* x, int position) const {
    for (int i = 0; i < s_.rope_dims / 2; ++i) {
      const double factor = kind.rope_factors.empty() ? 1.0 : static_cast<double>(kind.rope_factors[size(i)]);
      const double angle = position * std::pow(kind.rope_base, -2.0 * i / s_.rope_dims) / factor;
      T& left = x[s_.gemma ? i : 2 * i];
      T& right = x[s_.gemma ? i + s_.rope_dims / 2 : 2 * i + 1];
      const auto a = static_cast<double>(left), b = static_cast<double>(right);
      left = static_cast<T>(a * std::cos(angle) - b * std::sin(angle));
      right = static_cast<T>(a * std::sin(angle) + b * std::cos(angle));
    }
  }

  template <typename T>
  void attend(const T* q, int kv_head, int oldest, int length, const std::vector<double>& keys,
              const std::vector<double>& values, T* out) const {
    std::vector<double> weights(size(length));
    double sum = 0.0;
    for (int s = oldest; s < length; ++s) {
      double dot = 0.0;
      for (int d = 0; d < s_.head_dim; ++d) {
        dot += static_cast<double>(q[d]) * keys[size((s * s_.kv_heads + kv_head) * s_.head_dim + d)];
      }
      weights[size(s)] = std::exp(dot / std::sqrt(s_.head_dim));
      sum += weights[size(s)];
    }
    for (int d = 0; d < s_.head_dim; ++d) {
      double mixed = 0.0;
      for (int s = oldest; s < length; ++s) {
        mixed += weights[size(s)] / sum * values[size((s * s_.kv_heads + kv_head) * s_.head_dim + d)];
      }
      out[d] = static_cast<T>(mixed);
    }
  }

  reference_shape s_;
  std::vector<std::vector<double>> keys_, values_;  // of each layer [tokens][kv_heads][head_dim]
};

using row = std::vector<double>;

// The whole model in double precision, one value at a time.
class reference_model {
 public:
  reference_model(const gguf_file& file, const reference_shape& shape) : file_(file), s_(shape) {}

  // The logits after each token.
  std::vector<row> run(const std::vector<int>& tokens) const {
    plain_attention attention(s_);
    std::vector<row> logits;
    for (const int token : tokens) {
      row x(static_cast<std::size_t>(s_.hidden));
      const row embedding = values("token_embd.weight");
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = embedding[static_cast<std::size_t>(token) * x.size() + i];
      if (s_.gemma)
        for (double& value : x) value *= std::sqrt(s_.hidden);
      for (int layer = 0; layer < static_cast<int>(s_.layers.size()); ++layer) run_layer(layer, attention, x);
      const bool separate = file_.find_tensor("output.weight") != nullptr;
      logits.push_back(product(separate ? "output.weight" : "token_embd.weight", norm("output_norm.weight", x)));
    }
    return logits;
  }

 private:
  void run_layer(int layer, plain_attention& attention, row& x) const {
    const std::string blk = "blk." + std::to_string(layer) + ".";
    const row normed = norm(blk + "attn_norm.weight", x);
    row q = product(blk + "attn_q.weight", normed);
    row k = product(blk + "attn_k.weight", normed);
    const row v = product(blk + "attn_v.weight", normed);
    if (s_.gemma) {
      q = head_norms(blk + "attn_q_norm.weight", q);
      k = head_norms(blk + "attn_k_norm.weight", k);
    }
    row mixed(q.size());
    attention.run(layer, 1, q.data(), k.data(), v.data(), mixed.data());
    add(x, post_norm(blk + "post_attention_norm.weight", product(blk + "attn_output.weight", mixed)));
    const row ffn_in = norm(blk + "ffn_norm.weight", x);
    row gate = product(blk + "ffn_gate.weight", ffn_in);
    const row up = product(blk + "ffn_up.weight", ffn_in);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = activation(gate[i]) * up[i];
    add(x, post_norm(blk + "post_ffw_norm.weight", product(blk + "ffn_down.weight", gate)));
  }

  double activation(double x) const {
    const double pi = std::acos(-1.0);
    if (s_.gemma) return x / 2 * (1 + std::tanh(std::sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
    return x / (1.0 + std::exp(-x));
  }

  row values(const std::string& name) const {
    const example::gguf_tensor& tensor = file_.tensor(name);
    std::vector<float> decoded(tensor.rows() * tensor.columns());
    example::dequantise(*example::supported_tensor_type(tensor.type_id), tensor.data.data(), decoded.size(),
                        decoded.data());
    return row(decoded.begin(), decoded.end());
  }

  row product(const std::string& name, const row& x) const {
    const row w = values(name);
    row out(w.size() / x.size());
    for (std::size_t r = 0; r < out.size(); ++r) {
      for (std::size_t i = 0; i < x.size(); ++i) out[r] += w[r * x.size() + i] * x[i];
    }
    return out;
  }

  row norm(const std::string& name, const row& x) const {
    const row weight = values(name);
    double squares = 0.0;
    for (const double v : x) squares += v * v;
    row out(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double mean = squares / static_cast<double>(x.size());
      out[i] = x[i] / std::sqrt(mean + 1e-5) * weight[i];
    }
    return out;
  }
  row post_norm(const std::string& name, const row& x) const { return s_.gemma ? norm(name, x) : x; }

  row head_norms(const std::string& name, const row& heads) const {
    row out;
    for (std::size_t first = 0; first < heads.size(); first += static_cast<std::size_t>(s_.head_dim)) {
      const auto begin = heads.begin() + static_cast<std::ptrdiff_t>(first);
      const row one = norm(name, row(begin, begin + s_.head_dim));
      out.insert(out.end(), one.begin(), one.end());
    }
    return out;
  }

  static void add(row& x, const row& delta) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += delta[i];
  }

  const gguf_file& file_;
  reference_shape s_;
};

std::vector<int> some_tokens(int count) {
  std::vector<int> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 37 + 11) % 280);
  return tokens;
}

// The logits of every token, the tokens given in chunks.
std::vector<float> run(transformer& model, const reference_shape& shape, const std::vector<int>& tokens,
                       std::size_t chunk) {
  plain_attention attention(shape);
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  std::vector<float> logits(tokens.size() * vocab);
  std::vector<float> hidden;
  for (std::size_t at = 0; at < tokens.size(); at += chunk) {
    const std::size_t count = std::min(chunk, tokens.size() - at);
    model.forward(std::span(tokens).subspan(at, count), attention.callback(), hidden);
    model.logits(hidden.data(), static_cast<int>(count), logits.data() + at * vocab);
  }
  return logits;
}

double worst_difference(const std::vector<float>& got, const std::vector<row>& expected) {
  double worst = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const row& logits = expected[i / expected[0].size()];
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - logits[i % logits.size()]));
  }
  return worst;
}

void check_against_reference(const support::tiny_gguf_options& options) {
  const auto file = open(support::tiny_gguf(options));
  transformer model(file);
  const reference_shape shape = shape_of(options, *file);
  const auto tokens = some_tokens(11);
  const auto expected = reference_model(*file, shape).run(tokens);
  for (const std::size_t chunk : {1u, 4u, 11u}) {
    INFO("tensor type " << options.tensor_type << ", chunks of " << chunk);
    CHECK(worst_difference(run(model, shape, tokens, chunk), expected) < 2e-4);
  }
}

// Wide enough for blocks of 256.
support::tiny_gguf_options wide(std::uint32_t type) {
  support::tiny_gguf_options options;
  options.hidden = options.ffn = 256;
  options.tensor_type = type;
  return options;
}

std::string error_of(const support::gguf_builder& builder) {
  try {
    transformer model(open(builder));
  } catch (const example::model_error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("transformer: logits match a model in double precision", "[examples]") {
  support::tiny_gguf_options options;
  check_against_reference(options);
  options.separate_output = true;
  options.rope_factors = true;
  options.rope_dims = 8;
  check_against_reference(options);
  options.kv_heads = 1;
  options.head_dim = 10;  // 40 wide heads in a model of 64
  options.rope_dims = 6;
  options.sentence_piece = true;
  check_against_reference(options);
}

TEST_CASE("transformer: layers of two kinds match a model in double precision", "[examples]") {
  support::tiny_gguf_options options;
  options.architecture = "gemma3";
  options.layers = 7;
  options.kv_heads = 1;
  options.window = 5;
  options.rope_base = 1e6f;
  check_against_reference(options);  // layer 5 is global
  options.global_period = 3;         // layers 2 and 5
  options.rope_factors = true;
  options.rope_dims = 12;
  options.separate_output = true;
  check_against_reference(options);
}

TEST_CASE("transformer: what a file of architecture gemma3 does not say follows from its name", "[examples]") {
  support::tiny_gguf_options options;
  options.architecture = "gemma3";
  options.layers = 12;
  options.window = 24;
  options.rope_base = 1e6f;
  const example::model_config c = example::read_model_config(*open(
      support::tiny_gguf(options).text("gemma3.rope.scaling.type", "linear").f32("gemma3.rope.scaling.factor", 8.0f)));
  REQUIRE(c.layers.size() == 12);
  for (std::size_t i = 0; i < 12; ++i) {
    const bool global = i == 5 || i == 11;
    CHECK(c.layers[i].window == (global ? 0 : 24));
    CHECK(c.layers[i].rope_base == (global ? 1e6f : 1e4f));
    CHECK(c.layers[i].rope_factors == (global ? std::vector<float>(8, 8.0f) : std::vector<float>()));
    CHECK(c.layers[i].qk_norms);
    CHECK(c.layers[i].post_norms);
  }
  CHECK(c.attention_scale == 0.25f);
  CHECK(c.embedding_scale == 8.0f);
  options.window = 0;
  CHECK_THAT(error_of(support::tiny_gguf(options)), support::containing("gemma3.attention.sliding_window"));
}

TEST_CASE("transformer: the one Gemma 3 of 62 layers scales by hidden size and heads", "[examples]") {
  support::tiny_gguf_options options;
  options.architecture = "gemma3";
  options.layers = 62;
  options.head_dim = 8;
  options.window = 4;
  CHECK(example::read_model_config(*open(support::tiny_gguf(options))).attention_scale == 0.25f);  // 64 / 4 = 16
}

TEST_CASE("transformer: every tensor type decodes within the model", "[examples]") {
  for (const std::uint32_t type :
       {support::ggml::f16, support::ggml::bf16, support::ggml::q4_0, support::ggml::q4_1, support::ggml::q5_0,
        support::ggml::q5_1, support::ggml::q8_0, support::ggml::q2_k, support::ggml::q3_k, support::ggml::q4_k,
        support::ggml::q5_k, support::ggml::q6_k}) {
    check_against_reference(wide(type));
  }
}

TEST_CASE("transformer: weights left in the file give the same bits, whatever the number of threads",
          "[examples][threads]") {
  const auto tokens = some_tokens(600);  // more than one tile of tokens
  const auto options = wide(support::ggml::q4_1);
  const auto file = open(support::tiny_gguf(options));
  const reference_shape shape = shape_of(options, *file);
  transformer decoded(file, {}, {weight_storage::fp32});
  CHECK(decoded.weights_are_fp32());
  for (const std::size_t chunk : {1u, 5u, 100u, 600u}) {
    const std::vector<int> some(tokens.begin(),
                                tokens.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(chunk * 3, 600)));
    const auto expected = run(decoded, shape, some, chunk);
    for (const int threads : {1, 3}) {
      kvilt::thread_pool pool(threads);
      transformer encoded(file, kvilt::host(pool), {weight_storage::encoded});
      CHECK_FALSE(encoded.weights_are_fp32());
      CHECK(run(encoded, shape, some, chunk) == expected);
      transformer threaded(file, kvilt::host(pool), {weight_storage::fp32});
      CHECK(run(threaded, shape, some, chunk) == expected);
    }
  }
}

TEST_CASE("transformer: integer arithmetic serves up to 8 tokens, and only on request", "[examples][threads]") {
  const auto tokens = some_tokens(9);
  const auto logits = [&](transformer& model, const reference_shape& shape, int count, example::arithmetic how) {
    plain_attention attention(shape);
    std::vector<float> hidden, out(static_cast<std::size_t>(count * model.config().vocab));
    model.forward(std::span(tokens).first(static_cast<std::size_t>(count)), attention.callback(), hidden, how);
    model.logits(hidden.data(), count, out.data(), how);
    return out;
  };
  for (const std::uint32_t type : {support::ggml::q8_0, support::ggml::q4_k, support::ggml::f16}) {
    INFO("tensor type " << type);
    const auto options = wide(type);
    const auto file = open(support::tiny_gguf(options));
    const reference_shape shape = shape_of(options, *file);
    kvilt::thread_pool pool(3);
    transformer plain(file), coded(file, {}, {.codes = true}), threaded(file, kvilt::host(pool), {.codes = true});
    for (const int count : {1, 8, 9}) {
      const auto expected = logits(plain, shape, count, example::arithmetic::fp32);
      CHECK(logits(plain, shape, count, example::arithmetic::integer) == expected);
      CHECK(logits(coded, shape, count, example::arithmetic::fp32) == expected);
      const auto got = logits(coded, shape, count, example::arithmetic::integer);
      CHECK(logits(threaded, shape, count, example::arithmetic::integer) == got);
      double error = 0, size = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        error += std::pow(double(got[i]) - double(expected[i]), 2);
        size += std::pow(double(expected[i]), 2);
      }
      const bool integers = count <= 8 && type != support::ggml::f16;
      CHECK((error > 0) == integers);
      CHECK(std::sqrt(error / size) < 0.03);
    }
  }
}

TEST_CASE("transformer: the callback gets each layer once, in order", "[examples]") {
  transformer model(open(support::tiny_gguf()));
  std::vector<int> layers;
  std::vector<float> hidden;
  const std::vector<int> tokens{1, 2, 3};
  model.forward(
      tokens,
      [&](int layer, int n, float*, float*, const float*, float* out) {
        layers.push_back(layer);
        CHECK(n == 3);
        std::fill(out, out + n * 64, 0.0f);
      },
      hidden);
  CHECK(layers == std::vector<int>{0, 1});
  CHECK(hidden.size() == 3 * 64);
}

TEST_CASE("transformer: what it cannot run is named", "[examples]") {
  support::tiny_gguf_options options;
  options.architecture = "mamba";
  CHECK_THAT(error_of(support::tiny_gguf(options)),
             support::containing("architecture 'mamba'; supported: llama, gemma3"));
  CHECK_THAT(error_of(support::tiny_gguf().u32("llama.expert_count", 8)), support::containing("mixture of experts"));
  CHECK_THAT(error_of(support::tiny_gguf().text("llama.rope.scaling.type", "yarn")),
             support::containing("'yarn'; supported: none, linear"));
  CHECK_THAT(error_of(support::tiny_gguf().tensor("blk.0.attn_q.bias", {1}, 0, "1234")),
             support::containing("'blk.0.attn_q.bias' is not part of a plain llama model"));
  CHECK_THAT(error_of(support::tiny_gguf().tensor("output.weight", {256, 1}, support::ggml::iq2_xs, "x")),
             support::containing("expected 64 x 283"));
  CHECK_THAT(
      error_of(support::tiny_gguf().tensor("output.weight", {64, 283}, support::ggml::iq2_xs, "x")),
      support::containing("tensor 'output.weight' has type IQ2_XS, which is not supported; supported: F32, F16"));
  CHECK_THAT(error_of(support::tiny_gguf().tensor("rope_freqs.weight", {4}, 0, std::string(16, '\0'))),
             support::containing("'rope_freqs.weight' is 4 x 1; expected 8"));
  options = {};
  options.rope_dims = 18;
  CHECK_THAT(error_of(support::tiny_gguf(options)), support::containing("is 18; expected an even number up to 16"));
  options = {};
  options.kv_heads = 3;
  CHECK_THAT(error_of(support::tiny_gguf(options)), support::containing("4 query heads are no multiple of 3 KV heads"));
}

TEST_CASE("transformer: no more layers than tensors are believed", "[examples]") {
  support::gguf_builder file;
  file.text("general.architecture", "llama").u32("llama.block_count", 1u << 20).u32("llama.embedding_length", 8);
  file.u32("llama.feed_forward_length", 8).u32("llama.attention.head_count", 1).u32("llama.context_length", 8);
  file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  file.tensor("token_embd.weight", {8, 1}, 0, std::string(32, '\0'));
  CHECK_THAT(error_of(file), support::containing("llama.block_count is 1048576; the file has 1 tensors"));
}

TEST_CASE("transformer: linear RoPE scaling divides every frequency", "[examples]") {
  auto builder = support::tiny_gguf();
  builder.text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4.0f);
  for (const auto& layer : example::read_model_config(*open(builder)).layers)
    CHECK(layer.rope_factors == std::vector<float>(8, 4.0f));
  for (const auto& layer : example::read_model_config(*open(support::tiny_gguf())).layers)
    CHECK(layer.rope_factors.empty());
}

TEST_CASE("transformer: a token outside the vocabulary is refused", "[examples]") {
  const auto file = open(support::tiny_gguf());
  transformer model(file);
  plain_attention attention(shape_of({}, *file));
  std::vector<float> hidden;
  for (const int token : {-1, 283}) {
    const std::vector<int> tokens{token};
    CHECK_THROWS_WITH(model.forward(tokens, attention.callback(), hidden),
                      support::containing("token " + std::to_string(token) + " is outside the vocabulary of 283"));
  }
}

TEST_CASE("transformer: ranges cover everything once", "[examples][threads]") {
  for (const int threads : {1, 2, 5}) {
    kvilt::thread_pool pool(threads);
    for (int count = 0; count < 100; ++count) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
      std::atomic<int> ranges{0};
      example::run_ranges(kvilt::host(pool), count, 3, [&](int begin, int end) {
        ++ranges;
        for (int i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
      });
      CHECK(std::all_of(seen.begin(), seen.end(), [](const std::atomic<int>& n) { return n == 1; }));
      CHECK(ranges == std::clamp(count / 3, 1, threads));
    }
  }
}
