#include "llama.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace example {
namespace {

constexpr int largest_size = 1 << 24;  // of anything a file states: products of two stay within 64 bits

int checked_size(std::string_view what, int value) {
  if (value < 1 || value > largest_size) {
    throw model_error(std::string(what) + " is " + std::to_string(value) + "; expected 1 to 2^24");
  }
  return value;
}

int read_size(const gguf_file& file, const std::string& key) {
  return checked_size(key, file.metadata<int>(key));
}

int read_size_or(const gguf_file& file, const std::string& key, int fallback) {
  return checked_size(key, file.optional<int>(key).value_or(fallback));
}

void check_architecture(const gguf_file& file) {
  const auto architecture = file.metadata<std::string>("general.architecture");
  if (architecture != "llama") {
    throw model_error(file.path() + " has architecture '" + architecture + "'; supported: llama");
  }
  if (file.optional<int>("llama.expert_count").value_or(0) > 0) {
    throw model_error(file.path() + " is a mixture of experts, which is not supported; expected a dense llama model");
  }
}

void check_heads(const llama_config& c, int value_dim) {
  if (c.q_heads % c.kv_heads != 0) {
    throw model_error(std::to_string(c.q_heads) + " query heads are no multiple of " + std::to_string(c.kv_heads) +
                      " KV heads");
  }
  if (value_dim != c.head_dim) {
    throw model_error("values have " + std::to_string(value_dim) + " elements and keys " + std::to_string(c.head_dim) +
                      "; expected the same");
  }
  if (c.rope_dims % 2 != 0 || c.rope_dims > c.head_dim) {
    throw model_error("llama.rope.dimension_count is " + std::to_string(c.rope_dims) +
                      "; expected an even number up to " + std::to_string(c.head_dim));
  }
}

std::uint64_t physical_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_size = ::sysconf(_SC_PAGE_SIZE);
  return pages > 0 && page_size > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_size) : 0;
}

bool fits_as_fp32(const gguf_file& file) {
  std::uint64_t bytes = 0;
  for (const gguf_tensor& tensor : file.tensors()) bytes += tensor.columns() * tensor.rows() * sizeof(float);
  return bytes <= physical_memory() / 2;
}

std::string layer_name(int layer, std::string_view part) {
  return "blk." + std::to_string(layer) + "." + std::string(part) + ".weight";
}

constexpr std::array<std::string_view, 9> layer_parts{"attn_norm", "attn_q",   "attn_k", "attn_v",  "attn_output",
                                                      "ffn_norm",  "ffn_gate", "ffn_up", "ffn_down"};

// The sum in 16 partial ones, so that the compiler may use vectors without leave to reorder sums.
float sum_of_squares(const float* x, int n) {
  constexpr int lanes = 16;
  std::array<float, lanes> partial{};
  int i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int lane = 0; lane < lanes; ++lane) partial[static_cast<std::size_t>(lane)] += x[i + lane] * x[i + lane];
  }
  float sum = 0.0f;
  for (; i < n; ++i) sum += x[i] * x[i];
  for (const float p : partial) sum += p;
  return sum;
}

// gate = silu(gate) * up
void gate_with_silu(float* gate, const float* up, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) gate[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

std::size_t elements(int a, int b) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b);
}

}  // namespace

llama_config read_llama_config(const gguf_file& file) {
  check_architecture(file);
  llama_config c{};
  c.layers = read_size(file, "llama.block_count");
  c.hidden = read_size(file, "llama.embedding_length");
  c.ffn = read_size(file, "llama.feed_forward_length");
  c.q_heads = read_size(file, "llama.attention.head_count");
  c.kv_heads = read_size_or(file, "llama.attention.head_count_kv", c.q_heads);
  c.head_dim = read_size_or(file, "llama.attention.key_length", c.hidden / c.q_heads);
  c.rope_dims = read_size_or(file, "llama.rope.dimension_count", c.head_dim);
  c.rope_base = file.optional<float>("llama.rope.freq_base").value_or(10000.0f);
  c.context = read_size(file, "llama.context_length");
  c.norm_eps = file.metadata<float>("llama.attention.layer_norm_rms_epsilon");
  const gguf_tensor& embedding = file.tensor("token_embd.weight");
  c.vocab = static_cast<int>(std::min<std::uint64_t>(embedding.rows(), largest_size));
  check_heads(c, read_size_or(file, "llama.attention.value_length", c.head_dim));
  return c;
}

llama_model::llama_model(std::shared_ptr<const gguf_file> file, int threads, weight_storage storage)
    : file_(std::move(file)),
      config_(read_llama_config(*file_)),
      workers_(std::make_unique<worker_pool>(threads)),
      fp32_(storage == weight_storage::fp32 || (storage == weight_storage::automatic && fits_as_fp32(*file_))) {
  load_rope_factors();
  embedding_ = load_matrix("token_embd.weight", config_.vocab, config_.hidden);
  if (file_->find_tensor("output.weight") != nullptr) {
    output_ = load_matrix("output.weight", config_.vocab, config_.hidden);
  }
  output_norm_ = read_vector(file_->tensor("output_norm.weight"), config_.hidden);
  for (int i = 0; i < config_.layers; ++i) layers_.push_back(load_layer(i));
  check_tensor_names();
}

weight_matrix llama_model::load_matrix(const std::string& name, int rows, int columns) const {
  const gguf_tensor& tensor = file_->tensor(name);
  if (tensor.rows() != static_cast<std::uint64_t>(rows) || tensor.columns() != static_cast<std::uint64_t>(columns)) {
    throw model_error("tensor '" + name + "' is " + std::to_string(tensor.columns()) + " x " +
                      std::to_string(tensor.rows()) + "; expected " + std::to_string(columns) + " x " +
                      std::to_string(rows));
  }
  return weight_matrix(tensor, fp32_, *workers_);
}

llama_model::layer llama_model::load_layer(int index) const {
  const llama_config& c = config_;
  const auto matrix = [&](std::string_view part, int rows, int columns) {
    return load_matrix(layer_name(index, part), rows, columns);
  };
  const auto norm = [&](std::string_view part) {
    return read_vector(file_->tensor(layer_name(index, part)), c.hidden);
  };
  if (elements(c.q_heads, c.head_dim) > largest_size) {
    throw model_error(std::to_string(c.q_heads) + " heads of " + std::to_string(c.head_dim) + " elements are too many");
  }
  layer out;
  out.attention_norm = norm("attn_norm");
  out.q = matrix("attn_q", c.q_heads * c.head_dim, c.hidden);
  out.k = matrix("attn_k", c.kv_heads * c.head_dim, c.hidden);
  out.v = matrix("attn_v", c.kv_heads * c.head_dim, c.hidden);
  out.attention_out = matrix("attn_output", c.hidden, c.q_heads * c.head_dim);
  out.ffn_norm = norm("ffn_norm");
  out.gate = matrix("ffn_gate", c.ffn, c.hidden);
  out.up = matrix("ffn_up", c.ffn, c.hidden);
  out.down = matrix("ffn_down", c.hidden, c.ffn);
  return out;
}

void llama_model::load_rope_factors() {
  const int pairs = config_.rope_dims / 2;
  if (const gguf_tensor* factors = file_->find_tensor("rope_freqs.weight")) {
    rope_factors_ = read_vector(*factors, pairs);
  }
  const auto scaling = file_->optional<std::string>("llama.rope.scaling.type").value_or("none");
  if (scaling == "none") return;
  if (scaling != "linear") {
    throw model_error("llama.rope.scaling.type is '" + scaling + "'; supported: none, linear");
  }
  const auto factor = file_->metadata<float>("llama.rope.scaling.factor");
  if (rope_factors_.empty()) rope_factors_.assign(static_cast<std::size_t>(pairs), 1.0f);
  for (float& f : rope_factors_) f *= factor;
}

// A tensor that the passes below do not use (a bias, another kind of norm) would change the model's answers without a
// word, so it is refused.
void llama_model::check_tensor_names() const {
  std::unordered_set<std::string> used{"token_embd.weight", "output.weight", "output_norm.weight", "rope_freqs.weight"};
  for (int i = 0; i < config_.layers; ++i) {
    for (const std::string_view part : layer_parts) used.insert(layer_name(i, part));
  }
  for (const gguf_tensor& tensor : file_->tensors()) {
    const std::string name(tensor.name);
    // Old converters stored the plain RoPE frequencies, which follow from the base.
    const bool redundant = name.ends_with(".attn_rot_embd.weight") || name.ends_with("rope.freqs");
    if (!redundant && used.count(name) == 0) {
      throw model_error("tensor '" + name + "' is not part of a plain llama model");
    }
  }
}

void llama_model::forward(std::span<const int> tokens, const attention_fn& attention, std::vector<float>& hidden_out) {
  const int n = static_cast<int>(tokens.size());
  resize_workspace(n);
  std::vector<float>& residual = hidden_out;  // [tokens][hidden]; normalised in place at the end
  embed(tokens, residual);
  for (int i = 0; i < config_.layers; ++i) {
    const layer& weights = layers_[static_cast<std::size_t>(i)];
    normalise(residual.data(), weights.attention_norm, n, work_.normed.data());
    const std::array<product, 3> projections{
        {{&weights.q, work_.q.data()}, {&weights.k, work_.k.data()}, {&weights.v, work_.v.data()}}};
    multiply(*workers_, projections, work_.normed.data(), n);
    attention(i, n, work_.q.data(), work_.k.data(), work_.v.data(), work_.attended.data());
    const product out{&weights.attention_out, work_.delta.data()};
    multiply(*workers_, std::span(&out, 1), work_.attended.data(), n);
    add_delta(n, residual.data());
    run_ffn(weights, n, residual.data());
  }
  normalise(residual.data(), output_norm_, n, residual.data());
}

void llama_model::logits(const float* hidden, int rows, float* out) {
  const product scores{output_.rows() > 0 ? &output_ : &embedding_, out};
  multiply(*workers_, std::span(&scores, 1), hidden, rows);
}

void llama_model::resize_workspace(int tokens) {
  const llama_config& c = config_;
  work_.normed.resize(elements(tokens, c.hidden));
  work_.delta.resize(elements(tokens, c.hidden));
  work_.q.resize(elements(tokens, c.q_heads * c.head_dim));
  work_.attended.resize(elements(tokens, c.q_heads * c.head_dim));
  work_.k.resize(elements(tokens, c.kv_heads * c.head_dim));
  work_.v.resize(elements(tokens, c.kv_heads * c.head_dim));
  work_.gate.resize(elements(tokens, c.ffn));
  work_.up.resize(elements(tokens, c.ffn));
}

void llama_model::embed(std::span<const int> tokens, std::vector<float>& out) {
  for (const int token : tokens) {
    if (token < 0 || token >= config_.vocab) {
      throw model_error("token " + std::to_string(token) + " is outside the vocabulary of " +
                        std::to_string(config_.vocab));
    }
  }
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  out.resize(tokens.size() * hidden);
  for (std::size_t i = 0; i < tokens.size(); ++i) embedding_.copy_row(tokens[i], out.data() + i * hidden);
}

// RMSNorm of each row; in and out may be the same.
void llama_model::normalise(const float* in, const std::vector<float>& weight, int tokens, float* out) {
  const int n = config_.hidden;
  workers_->run_ranges(tokens, 16, [&](int begin, int end) {
    for (int token = begin; token < end; ++token) {
      const float* x = in + elements(token, n);
      float* y = out + elements(token, n);
      const float scale = 1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + config_.norm_eps);
      for (int i = 0; i < n; ++i) y[i] = x[i] * scale * weight[static_cast<std::size_t>(i)];
    }
  });
}

void llama_model::add_delta(int tokens, float* residual) {
  const std::size_t n = elements(tokens, config_.hidden);
  for (std::size_t i = 0; i < n; ++i) residual[i] += work_.delta[i];
}

void llama_model::run_ffn(const layer& weights, int tokens, float* residual) {
  normalise(residual, weights.ffn_norm, tokens, work_.normed.data());
  const std::array<product, 2> expansions{{{&weights.gate, work_.gate.data()}, {&weights.up, work_.up.data()}}};
  multiply(*workers_, expansions, work_.normed.data(), tokens);
  workers_->run_ranges(tokens, 4, [&](int begin, int end) {
    const std::size_t first = elements(begin, config_.ffn);
    gate_with_silu(work_.gate.data() + first, work_.up.data() + first, elements(end - begin, config_.ffn));
  });
  const product contraction{&weights.down, work_.delta.data()};
  multiply(*workers_, std::span(&contraction, 1), work_.gate.data(), tokens);
  add_delta(tokens, residual);
}

}  // namespace example
