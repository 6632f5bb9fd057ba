#include "llama.hpp"

#include "support/catch.hpp"
#include "support/tiny_gguf.hpp"
#include "tensor_types.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace {

using example::gguf_file;
using example::llama_config;
using example::llama_model;
using example::weight_storage;

std::shared_ptr<const gguf_file> open(const support::gguf_builder& builder) {
  const std::string path = support::temporary_path("llama.gguf");
  builder.write(path);
  auto file = std::make_shared<const gguf_file>(path);
  std::filesystem::remove(path);  // the mapping stays
  return file;
}

// Plain causal attention over all that came before, with RoPE on interleaved pairs; one for each pass.
class plain_attention {
 public:
  plain_attention(const llama_config& config, std::vector<float> factors)
      : c_(config), factors_(std::move(factors)), keys_(size(c_.layers)), values_(size(c_.layers)) {}

  template <typename T>
  void run(int layer, int tokens, T* q, T* k, const T* v, T* out) {
    std::vector<double>& keys = keys_[size(layer)];
    std::vector<double>& values = values_[size(layer)];
    const int first = static_cast<int>(keys.size()) / (c_.kv_heads * c_.head_dim);
    for (int t = 0; t < tokens; ++t) {
      for (int h = 0; h < c_.q_heads; ++h) rotate(q + (t * c_.q_heads + h) * c_.head_dim, first + t);
      for (int h = 0; h < c_.kv_heads; ++h) rotate(k + (t * c_.kv_heads + h) * c_.head_dim, first + t);
    }
    keys.insert(keys.end(), k, k + tokens * c_.kv_heads * c_.head_dim);
    values.insert(values.end(), v, v + tokens * c_.kv_heads * c_.head_dim);
    for (int t = 0; t < tokens; ++t) {
      for (int h = 0; h < c_.q_heads; ++h) {
        const int at = (t * c_.q_heads + h) * c_.head_dim;
        attend(q + at, h / (c_.q_heads / c_.kv_heads), first + t + 1, keys, values, out + at);
      }
    }
  }

  example::attention_fn callback() {
    return [this](int layer, int n, float* q, float* k, const float* v, float* out) { run(layer, n, q, k, v, out); };
  }

 private:
  static std::size_t size(int n) { return static_cast<std::size_t>(n); }

  template <typename T>
  void rotate(T* x, int position) const {
    for (int i = 0; i < c_.rope_dims / 2; ++i) {
      const double factor = factors_.empty() ? 1.0 : static_cast<double>(factors_[size(i)]);
      const double base = static_cast<double>(c_.rope_base);
      const double angle = position * std::pow(base, -2.0 * i / c_.rope_dims) / factor;
      const auto a = static_cast<double>(x[2 * i]);
      const auto b = static_cast<double>(x[2 * i + 1]);
      x[2 * i] = static_cast<T>(a * std::cos(angle) - b * std::sin(angle));
      x[2 * i + 1] = static_cast<T>(a * std::sin(angle) + b * std::cos(angle));
    }
  }

  template <typename T>
  void attend(const T* q, int kv_head, int length, const std::vector<double>& keys, const std::vector<double>& values,
              T* out) const {
    std::vector<double> weights(size(length));
    double sum = 0.0;
    for (int s = 0; s < length; ++s) {
      double dot = 0.0;
      for (int d = 0; d < c_.head_dim; ++d) {
        dot += static_cast<double>(q[d]) * keys[size((s * c_.kv_heads + kv_head) * c_.head_dim + d)];
      }
      weights[size(s)] = std::exp(dot / std::sqrt(c_.head_dim));
      sum += weights[size(s)];
    }
    for (int d = 0; d < c_.head_dim; ++d) {
      double mixed = 0.0;
      for (int s = 0; s < length; ++s) {
        mixed += weights[size(s)] / sum * values[size((s * c_.kv_heads + kv_head) * c_.head_dim + d)];
      }
      out[d] = static_cast<T>(mixed);
    }
  }

  llama_config c_;
  std::vector<float> factors_;
  std::vector<std::vector<double>> keys_, values_;  // of each layer [tokens][kv_heads][head_dim]
};

using row = std::vector<double>;

// The whole model in double precision, one value at a time.
class reference_model {
 public:
  reference_model(const gguf_file& file, const llama_config& config, std::vector<float> factors)
      : file_(file), c_(config), factors_(std::move(factors)) {}

  // The logits after each token.
  std::vector<row> run(const std::vector<int>& tokens) const {
    plain_attention attention(c_, factors_);
    std::vector<row> logits;
    for (const int token : tokens) {
      row x(static_cast<std::size_t>(c_.hidden));
      const row embedding = values("token_embd.weight");
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = embedding[static_cast<std::size_t>(token) * x.size() + i];
      for (int layer = 0; layer < c_.layers; ++layer) run_layer(layer, attention, x);
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
    row mixed(q.size());
    attention.run(layer, 1, q.data(), k.data(), v.data(), mixed.data());
    add(x, product(blk + "attn_output.weight", mixed));
    const row ffn_in = norm(blk + "ffn_norm.weight", x);
    row gate = product(blk + "ffn_gate.weight", ffn_in);
    const row up = product(blk + "ffn_up.weight", ffn_in);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
    add(x, product(blk + "ffn_down.weight", gate));
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
      out[i] = x[i] / std::sqrt(mean + static_cast<double>(c_.norm_eps)) * weight[i];
    }
    return out;
  }

  static void add(row& x, const row& delta) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += delta[i];
  }

  const gguf_file& file_;
  llama_config c_;
  std::vector<float> factors_;
};

std::vector<int> some_tokens(int count) {
  std::vector<int> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 37 + 11) % 280);
  return tokens;
}

// The logits of every token, the tokens given in chunks.
std::vector<float> run(llama_model& model, const std::vector<int>& tokens, std::size_t chunk) {
  plain_attention attention(model.config(), model.rope_factors());
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
  llama_model model(file);
  const auto tokens = some_tokens(11);
  const auto expected = reference_model(*file, model.config(), model.rope_factors()).run(tokens);
  for (const std::size_t chunk : {1u, 4u, 11u}) {
    INFO("tensor type " << options.tensor_type << ", chunks of " << chunk);
    CHECK(worst_difference(run(model, tokens, chunk), expected) < 2e-4);
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
    llama_model model(open(builder));
  } catch (const example::model_error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("llama: logits match a model in double precision", "[examples]") {
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

TEST_CASE("llama: every tensor type decodes within the model", "[examples]") {
  for (const std::uint32_t type :
       {support::ggml::f16, support::ggml::bf16, support::ggml::q4_0, support::ggml::q4_1, support::ggml::q5_0,
        support::ggml::q5_1, support::ggml::q8_0, support::ggml::q4_k, support::ggml::q5_k, support::ggml::q6_k}) {
    check_against_reference(wide(type));
  }
}

TEST_CASE("llama: weights left in the file give the same bits, whatever the number of threads", "[examples][threads]") {
  const auto tokens = some_tokens(600);  // more than one tile of tokens
  const auto file = open(support::tiny_gguf(wide(support::ggml::q4_1)));
  llama_model decoded(file, 1, weight_storage::fp32);
  CHECK(decoded.weights_are_fp32());
  for (const std::size_t chunk : {1u, 5u, 100u, 600u}) {
    const std::vector<int> some(tokens.begin(),
                                tokens.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(chunk * 3, 600)));
    const auto expected = run(decoded, some, chunk);
    for (const int threads : {1, 3}) {
      llama_model encoded(file, threads, weight_storage::encoded);
      CHECK_FALSE(encoded.weights_are_fp32());
      CHECK(run(encoded, some, chunk) == expected);
      llama_model threaded(file, threads, weight_storage::fp32);
      CHECK(run(threaded, some, chunk) == expected);
    }
  }
}

TEST_CASE("llama: the callback gets each layer once, in order", "[examples]") {
  llama_model model(open(support::tiny_gguf()));
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

TEST_CASE("llama: what it cannot run is named", "[examples]") {
  support::tiny_gguf_options options;
  options.architecture = "gemma3";
  CHECK_THAT(error_of(support::tiny_gguf(options)), support::containing("architecture 'gemma3'; supported: llama"));
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

TEST_CASE("llama: linear RoPE scaling divides every frequency", "[examples]") {
  auto builder = support::tiny_gguf();
  builder.text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4.0f);
  CHECK(llama_model(open(builder)).rope_factors() == std::vector<float>(8, 4.0f));
  CHECK(llama_model(open(support::tiny_gguf())).rope_factors().empty());
}

TEST_CASE("llama: a token outside the vocabulary is refused", "[examples]") {
  llama_model model(open(support::tiny_gguf()));
  plain_attention attention(model.config(), {});
  std::vector<float> hidden;
  for (const int token : {-1, 283}) {
    const std::vector<int> tokens{token};
    CHECK_THROWS_WITH(model.forward(tokens, attention.callback(), hidden),
                      support::containing("token " + std::to_string(token) + " is outside the vocabulary of 283"));
  }
}

TEST_CASE("llama: the workers run every task once", "[examples][threads]") {
  for (const int threads : {1, 2, 5}) {
    example::worker_pool workers(threads);
    CHECK(workers.threads() == threads);
    for (int round = 0; round < 300; ++round) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(round % 17));
      workers.run(round % 17, [&](int i) { ++seen[static_cast<std::size_t>(i)]; });
      CHECK(std::all_of(seen.begin(), seen.end(), [](const std::atomic<int>& n) { return n == 1; }));
      int covered = 0;
      std::atomic<int> sum{0};
      workers.run_ranges(round, 3, [&](int begin, int end) { sum += end - begin; });
      covered = sum;
      CHECK(covered == round);
    }
  }
}
