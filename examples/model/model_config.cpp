#include "model_config.hpp"

#include "linear.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace example {
namespace {

constexpr int largest_size = 1 << 24;  // of anything a file states: products of two stay within 64 bits

// What the name of an architecture stands for.
struct architecture {
  std::string_view name;
  kvilt::rope_pairs rope_pairs;
  gate_activation gate;
  bool qk_norms;
  bool post_norms;
  bool scales_embedding;  // by the root of the hidden size
  int global_period;      // n: every n-th layer sees all tokens, the others a window
};

// Gemma 3: Gemma Team, "Gemma 3 technical report", 2025. Its files hold norm weights with the 1 already added.
constexpr std::array<architecture, 2> architectures{{
    {"llama", kvilt::rope_pairs::interleaved, gate_activation::silu, false, false, false, 1},
    {"gemma3", kvilt::rope_pairs::half_split, gate_activation::gelu_tanh, true, true, true, 6},
}};

// The values of a file under its architecture's name.
class reader {
 public:
  reader(const gguf_file& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

  std::string key(std::string_view name) const { return prefix_ + std::string(name); }
  int size(std::string_view name) const { return checked(key(name), file_.metadata<int>(key(name))); }
  int size(std::string_view name, int fallback) const {
    return checked(key(name), file_.optional<int>(key(name)).value_or(fallback));
  }
  float number(std::string_view name) const { return file_.metadata<float>(key(name)); }
  float number(std::string_view name, float fallback) const {
    return file_.optional<float>(key(name)).value_or(fallback);
  }
  std::string word(std::string_view name, std::string_view fallback) const {
    return file_.optional<std::string>(key(name)).value_or(std::string(fallback));
  }
  int count(std::string_view name) const { return file_.optional<int>(key(name)).value_or(0); }

 private:
  static int checked(const std::string& what, int value) {
    if (value < 1 || value > largest_size)
      throw model_error(what + " is " + std::to_string(value) + "; expected 1 to 2^24");
    return value;
  }

  const gguf_file& file_;
  std::string prefix_;
};

const architecture& architecture_of(const gguf_file& file) {
  const auto name = file.metadata<std::string>("general.architecture");
  std::string supported;
  for (const architecture& a : architectures) {
    if (a.name == name) return a;
    supported += (supported.empty() ? "" : ", ") + std::string(a.name);
  }
  throw model_error(file.path() + " has architecture '" + name + "'; supported: " + supported);
}

void check_heads(const model_config& c, const reader& from, int value_dim) {
  if (c.q_heads % c.kv_heads != 0) {
    throw model_error(std::to_string(c.q_heads) + " query heads are no multiple of " + std::to_string(c.kv_heads) +
                      " KV heads");
  }
  if (value_dim != c.head_dim) {
    throw model_error("values have " + std::to_string(value_dim) + " elements and keys " + std::to_string(c.head_dim) +
                      "; expected the same");
  }
  if (static_cast<std::int64_t>(c.q_heads) * c.head_dim > largest_size) {
    throw model_error(std::to_string(c.q_heads) + " heads of " + std::to_string(c.head_dim) + " elements are too many");
  }
  if (c.rope_dims % 2 != 0 || c.rope_dims > c.head_dim) {
    throw model_error(from.key("rope.dimension_count") + " is " + std::to_string(c.rope_dims) +
                      "; expected an even number up to " + std::to_string(c.head_dim));
  }
}

// Of the layers that see all tokens: what stretches RoPE over a long context is nothing to a window.
std::vector<float> read_rope_factors(const gguf_file& file, const reader& from, int pairs) {
  std::vector<float> factors;
  if (const gguf_tensor* tensor = file.find_tensor("rope_freqs.weight")) factors = read_vector(*tensor, pairs);
  const std::string scaling = from.word("rope.scaling.type", "none");
  if (scaling == "none") return factors;
  if (scaling != "linear")
    throw model_error(from.key("rope.scaling.type") + " is '" + scaling + "'; supported: none, linear");
  const float factor = from.number("rope.scaling.factor");
  if (factors.empty()) factors.assign(static_cast<std::size_t>(pairs), 1.0f);
  for (float& f : factors) f *= factor;
  return factors;
}

std::vector<layer_config> read_layers(const gguf_file& file, const architecture& known, const reader& from,
                                      int rope_dims) {
  const int period = known.global_period == 1 ? 1 : from.size("attention.sliding_window_pattern", known.global_period);
  layer_config global{.qk_norms = known.qk_norms, .post_norms = known.post_norms, .gate = known.gate};
  layer_config local = global;
  global.rope_base = from.number("rope.freq_base", 10000.0f);
  global.rope_factors = read_rope_factors(file, from, rope_dims / 2);
  local.rope_base = from.number("rope.freq_base_swa", 10000.0f);
  if (period > 1) local.window = from.size("attention.sliding_window");
  const int count = from.size("block_count");
  if (static_cast<std::size_t>(count) > file.tensors().size())
    throw model_error(from.key("block_count") + " is " + std::to_string(count) + "; the file has " +
                      std::to_string(file.tensors().size()) + " tensors");
  std::vector<layer_config> layers;
  for (int i = 0; i < count; ++i) layers.push_back((i + 1) % period == 0 ? global : local);
  return layers;
}

// NOTE: the one model of 62 layers, Gemma 3 27B, divides by the root of hidden size / heads, and its file does not say.
float attention_scale_of(const model_config& c) {
  const bool by_hidden = c.architecture == "gemma3" && c.layers.size() == 62;
  return 1.0f / std::sqrt(static_cast<float>(by_hidden ? c.hidden / c.q_heads : c.head_dim));
}

}  // namespace

model_config read_model_config(const gguf_file& file) {
  const architecture& known = architecture_of(file);
  const reader from(file, known.name);
  if (from.count("expert_count") > 0)
    throw model_error(file.path() + " is a mixture of experts, which is not supported; expected a dense model");
  model_config c;
  c.architecture = known.name;
  c.hidden = from.size("embedding_length");
  c.ffn = from.size("feed_forward_length");
  c.q_heads = from.size("attention.head_count");
  c.kv_heads = from.size("attention.head_count_kv", c.q_heads);
  c.head_dim = from.size("attention.key_length", std::max(c.hidden / c.q_heads, 1));
  c.rope_dims = from.size("rope.dimension_count", c.head_dim);
  c.rope_pairs = known.rope_pairs;
  c.embedding_scale = known.scales_embedding ? std::sqrt(static_cast<float>(c.hidden)) : 1.0f;
  c.context = from.size("context_length");
  c.norm_eps = from.number("attention.layer_norm_rms_epsilon");
  c.vocab = static_cast<int>(std::min<std::uint64_t>(file.tensor("token_embd.weight").rows(), largest_size));
  check_heads(c, from, from.size("attention.value_length", c.head_dim));
  c.layers = read_layers(file, known, from, c.rope_dims);
  c.attention_scale = attention_scale_of(c);
  return c;
}

}  // namespace example
