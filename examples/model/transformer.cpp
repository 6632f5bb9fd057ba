#include "transformer.hpp"

#include "activations.hpp"
#include "ranges.hpp"

#include <unistd.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace example {
namespace {

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

std::string layer_name(std::size_t layer, std::string_view part) {
  return "blk." + std::to_string(layer) + "." + std::string(part) + ".weight";
}

std::vector<std::string_view> parts_of(const layer_config& layer) {
  std::vector<std::string_view> parts{"attn_norm", "attn_q",   "attn_k", "attn_v",  "attn_output",
                                      "ffn_norm",  "ffn_gate", "ffn_up", "ffn_down"};
  if (layer.qk_norms) parts.insert(parts.end(), {"attn_q_norm", "attn_k_norm"});
  if (layer.post_norms) parts.insert(parts.end(), {"post_attention_norm", "post_ffw_norm"});
  return parts;
}

std::size_t elements(int a, int b) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b);
}

}  // namespace

void check_tokens(std::span<const int> tokens, int vocab) {
  for (const int token : tokens) {
    if (token < 0 || token >= vocab)
      throw model_error("token " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(vocab));
  }
}

transformer::transformer(std::shared_ptr<const gguf_file> file, const kvilt::host& exec, const weight_options& weights)
    : file_(std::move(file)),
      config_(read_model_config(*file_)),
      exec_(exec),
      fp32_(weights.storage == weight_storage::fp32 ||
            (weights.storage == weight_storage::automatic && fits_as_fp32(*file_))),
      codes_(weights.codes) {
  weights_.embedding = load_matrix("token_embd.weight", config_.vocab, config_.hidden);
  if (file_->find_tensor("output.weight") != nullptr) {
    weights_.output = load_matrix("output.weight", config_.vocab, config_.hidden);
  }
  weights_.output_norm = read_vector(file_->tensor("output_norm.weight"), config_.hidden);
  for (std::size_t i = 0; i < config_.layers.size(); ++i) weights_.layers.push_back(load_layer(static_cast<int>(i)));
  check_tensor_names();
}

weight_matrix transformer::load_matrix(const std::string& name, int rows, int columns) const {
  const gguf_tensor& tensor = file_->tensor(name);
  if (tensor.rows() != static_cast<std::uint64_t>(rows) || tensor.columns() != static_cast<std::uint64_t>(columns)) {
    throw model_error("tensor '" + name + "' is " + std::to_string(tensor.columns()) + " x " +
                      std::to_string(tensor.rows()) + "; expected " + std::to_string(columns) + " x " +
                      std::to_string(rows));
  }
  return weight_matrix(tensor, fp32_, codes_, exec_);
}

layer_weights transformer::load_layer(int index) const {
  const model_config& c = config_;
  const auto nth = static_cast<std::size_t>(index);
  const auto matrix = [&](std::string_view part, int rows, int columns) {
    return load_matrix(layer_name(nth, part), rows, columns);
  };
  const auto read_norm = [&](std::string_view part, int size) {
    return read_vector(file_->tensor(layer_name(nth, part)), size);
  };
  layer_weights out;
  out.attention_norm = read_norm("attn_norm", c.hidden);
  out.q = matrix("attn_q", c.q_heads * c.head_dim, c.hidden);
  out.k = matrix("attn_k", c.kv_heads * c.head_dim, c.hidden);
  out.v = matrix("attn_v", c.kv_heads * c.head_dim, c.hidden);
  out.attention_out = matrix("attn_output", c.hidden, c.q_heads * c.head_dim);
  out.ffn_norm = read_norm("ffn_norm", c.hidden);
  out.gate = matrix("ffn_gate", c.ffn, c.hidden);
  out.up = matrix("ffn_up", c.ffn, c.hidden);
  out.down = matrix("ffn_down", c.hidden, c.ffn);
  if (c.layers[nth].qk_norms) {
    out.q_norm = read_norm("attn_q_norm", c.head_dim);
    out.k_norm = read_norm("attn_k_norm", c.head_dim);
  }
  if (c.layers[nth].post_norms) {
    out.post_attention_norm = read_norm("post_attention_norm", c.hidden);
    out.post_ffn_norm = read_norm("post_ffw_norm", c.hidden);
  }
  return out;
}

// A tensor that the passes below do not use (a bias, another kind of norm) would change the model's answers without a
// word, so it is refused.
void transformer::check_tensor_names() const {
  std::unordered_set<std::string> used{"token_embd.weight", "output.weight", "output_norm.weight", "rope_freqs.weight"};
  for (std::size_t i = 0; i < config_.layers.size(); ++i) {
    for (const std::string_view part : parts_of(config_.layers[i])) used.insert(layer_name(i, part));
  }
  for (const gguf_tensor& tensor : file_->tensors()) {
    const std::string name(tensor.name);
    // Old converters stored the plain RoPE frequencies, which follow from the base.
    const bool redundant = name.ends_with(".attn_rot_embd.weight") || name.ends_with("rope.freqs");
    if (!redundant && used.count(name) == 0) {
      throw model_error("tensor '" + name + "' is not part of a plain " + config_.architecture + " model");
    }
  }
}

void transformer::forward(std::span<const int> tokens, const attention_fn& attention, std::vector<float>& hidden_out,
                          arithmetic how) {
  const int n = static_cast<int>(tokens.size());
  resize_workspace(n);
  std::vector<float>& residual = hidden_out;  // [tokens][hidden]; normalised in place at the end
  embed(tokens, residual);
  for (int i = 0; i < static_cast<int>(weights_.layers.size()); ++i) {
    run_attention(i, n, attention, how, residual.data());
    run_ffn(i, n, how, residual.data());
  }
  normalise(residual.data(), weights_.output_norm, n, residual.data());
}

void transformer::logits(const float* hidden, int rows, float* out, arithmetic how) {
  const product scores{&weights_.head(), out};
  multiply(exec_, std::span(&scores, 1), hidden, rows, how);
}

void transformer::resize_workspace(int tokens) {
  const model_config& c = config_;
  work_.normed.resize(elements(tokens, c.hidden));
  work_.delta.resize(elements(tokens, c.hidden));
  work_.q.resize(elements(tokens, c.q_heads * c.head_dim));
  work_.attended.resize(elements(tokens, c.q_heads * c.head_dim));
  work_.k.resize(elements(tokens, c.kv_heads * c.head_dim));
  work_.v.resize(elements(tokens, c.kv_heads * c.head_dim));
  work_.gate.resize(elements(tokens, c.ffn));
  work_.up.resize(elements(tokens, c.ffn));
}

void transformer::embed(std::span<const int> tokens, std::vector<float>& out) const {
  check_tokens(tokens, config_.vocab);
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  out.resize(tokens.size() * hidden);
  for (std::size_t i = 0; i < tokens.size(); ++i) weights_.embedding.copy_row(tokens[i], out.data() + i * hidden);
  if (config_.embedding_scale == 1.0f) return;
  for (float& x : out) x *= config_.embedding_scale;
}

void transformer::run_attention(int index, int tokens, const attention_fn& attention, arithmetic how, float* residual) {
  const layer_weights& weights = weights_.layers[static_cast<std::size_t>(index)];
  normalise(residual, weights.attention_norm, tokens, work_.normed.data());
  const std::array<product, 3> projections{
      {{&weights.q, work_.q.data()}, {&weights.k, work_.k.data()}, {&weights.v, work_.v.data()}}};
  multiply(exec_, projections, work_.normed.data(), tokens, how);
  normalise(work_.q.data(), weights.q_norm, tokens * config_.q_heads, work_.q.data());
  normalise(work_.k.data(), weights.k_norm, tokens * config_.kv_heads, work_.k.data());
  attention(index, tokens, work_.q.data(), work_.k.data(), work_.v.data(), work_.attended.data());
  const product out{&weights.attention_out, work_.delta.data()};
  multiply(exec_, std::span(&out, 1), work_.attended.data(), tokens, how);
  add_delta(weights.post_attention_norm, tokens, residual);
}

void transformer::run_ffn(int index, int tokens, arithmetic how, float* residual) {
  const layer_weights& weights = weights_.layers[static_cast<std::size_t>(index)];
  normalise(residual, weights.ffn_norm, tokens, work_.normed.data());
  const std::array<product, 2> expansions{{{&weights.gate, work_.gate.data()}, {&weights.up, work_.up.data()}}};
  multiply(exec_, expansions, work_.normed.data(), tokens, how);
  const gate_activation kind = config_.layers[static_cast<std::size_t>(index)].gate;
  run_ranges(exec_, tokens, 4, [&](int begin, int end) {
    const std::size_t first = elements(begin, config_.ffn);
    apply_gate(kind, work_.gate.data() + first, work_.up.data() + first, elements(end - begin, config_.ffn));
  });
  const product contraction{&weights.down, work_.delta.data()};
  multiply(exec_, std::span(&contraction, 1), work_.gate.data(), tokens, how);
  add_delta(weights.post_ffn_norm, tokens, residual);
}

// Each row of the norm's width; in and out may be the same. Nothing where there is no norm.
void transformer::normalise(const float* in, const norm_weights& weight, int rows, float* out) const {
  if (weight.empty()) return;
  run_ranges(exec_, rows, 16, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      const std::size_t at = static_cast<std::size_t>(row) * weight.size();
      rms_norm(in + at, weight, config_.norm_eps, out + at);
    }
  });
}

void transformer::add_delta(const norm_weights& post_norm, int tokens, float* residual) {
  normalise(work_.delta.data(), post_norm, tokens, work_.delta.data());
  const std::size_t n = elements(tokens, config_.hidden);
  for (std::size_t i = 0; i < n; ++i) residual[i] += work_.delta[i];
}

}  // namespace example
