#include "cuda_transformer.cuh"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <tuple>

namespace example {
namespace {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string(what) + ": cuBLAS says " + cublasGetStatusString(status));
}

std::size_t size_of(const weight_matrix& m) {
  return std::size_t(m.rows()) * std::size_t(m.columns());
}

// Matrices of the same columns, one below the other.
cuda_array<float> stacked(std::initializer_list<const weight_matrix*> matrices) {
  constexpr int some = 1024;  // rows that are decoded at a time, where they are not yet
  std::size_t all = 0, at = 0;
  for (const weight_matrix* m : matrices) all += size_of(*m);
  cuda_array<float> there(all);
  for (const weight_matrix* m : matrices)
    for (int row = 0; row < m->rows(); row += some) {
      const int count = std::min(some, m->rows() - row);
      const std::size_t size = std::size_t(count) * std::size_t(m->columns());
      there.put({m->block(row, count), size}, at);
      at += size;
    }
  return there;
}

cuda_array<float> copied(const norm_weights& norm) {
  return cuda_array<float>(std::span(norm));
}

}  // namespace

cuda_blas::cuda_blas(const stream& on) {
  check(cublasCreate(&handle_), "cuBLAS");
  check(cublasSetStream(handle_, on), "cuBLAS's stream");
  // NOTE: of our own, so that a captured graph uses no memory that cuBLAS would ask for.
  check(cublasSetWorkspace(handle_, workspace_.data(), workspace_.size()), "cuBLAS's workspace");
}

void cuda_blas::multiply(const float* weights, int outputs, int inputs, const float* in, int tokens, float* out) const {
  const float one = 1, zero = 0;
  // NOTE: cuBLAS's matrices are column by column: it sees all three transposed.
  check(cublasSgemm(handle_, CUBLAS_OP_T, CUBLAS_OP_N, outputs, tokens, inputs, &one, weights, inputs, in, inputs,
                    &zero, out, outputs),
        "a product of matrices");
}

cuda_transformer::cuda_transformer(const transformer& from, int most_tokens)
    : config_(from.config()),
      most_tokens_(most_tokens),
      blas_(stream_),
      embedding_(stacked({&from.weights().embedding})),
      output_(from.weights().output.rows() > 0 ? stacked({&from.weights().output}) : numbers()),
      output_norm_(copied(from.weights().output_norm)),
      likeliest_(1),
      residual_(rows_of(config_.hidden)),
      normed_(rows_of(config_.hidden)),
      delta_(rows_of(config_.hidden)),
      hidden_(rows_of(config_.hidden)),
      qkv_(rows_of(qkv_size())),
      attended_(rows_of(config_.q_heads * config_.head_dim)),
      gate_up_(rows_of(2 * config_.ffn)),
      gated_(rows_of(config_.ffn)) {
  for (const layer_weights& weights : from.weights().layers) layers_.push_back(copy_of(weights));
  // A pass may have fewer tokens than its graph was captured for; what it computes of the others is to be harmless.
  for (const numbers* rows : {&residual_, &attended_}) rows->clear();
}

cuda_transformer::layer cuda_transformer::copy_of(const layer_weights& from) {
  return {
      .attention_norm = copied(from.attention_norm),
      .qkv = stacked({&from.q, &from.k, &from.v}),
      .attention_out = stacked({&from.attention_out}),
      .q_norm = copied(from.q_norm),
      .k_norm = copied(from.k_norm),
      .post_attention_norm = copied(from.post_attention_norm),
      .ffn_norm = copied(from.ffn_norm),
      .gate_up = stacked({&from.gate, &from.up}),
      .down = stacked({&from.down}),
      .post_ffn_norm = copied(from.post_ffn_norm),
  };
}

void cuda_transformer::send(std::span<const int> tokens) {
  check_tokens(tokens, config_.vocab);
  if (tokens_.size() < tokens.size()) tokens_ = cuda_array<int>(tokens.size());
  check(cudaMemcpyAsync(tokens_.data(), tokens.data(), tokens.size_bytes(), cudaMemcpyHostToDevice, stream_), "tokens");
}

void cuda_transformer::embed(int first, int count) {
  cuda::embed(stream_, embedding_.data(), tokens_.data() + first, count, config_.hidden, config_.embedding_scale,
              residual_.data());
}

std::unique_ptr<const graph> cuda_transformer::record(int tokens, const cuda_attention_fn& attention) {
  if (tokens > most_tokens_)
    throw std::logic_error("a pass over " + std::to_string(tokens) + " tokens; the model has room for " +
                           std::to_string(most_tokens_));
  // NOTE: outside of a graph first, since cuBLAS loads its kernels when it meets a shape.
  forward(tokens, [](auto&&...) {});
  stream_.wait();
  return std::make_unique<const graph>(stream_, [&] { forward(tokens, attention); });
}

void cuda_transformer::forward(int tokens, const cuda_attention_fn& attention) {
  cuda::addition added;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const layer& weights = layers_[i];
    add_and_norm(added, weights.attention_norm, tokens, normed_);
    run_attention(static_cast<int>(i), tokens, attention);
    add_and_norm({delta_.data(), weights.post_attention_norm.data()}, weights.ffn_norm, tokens, normed_);
    run_ffn(weights, config_.layers[i].gate, tokens);
    added = {delta_.data(), weights.post_ffn_norm.data()};
  }
  add_and_norm(added, output_norm_, tokens, hidden_);
}

void cuda_transformer::run_attention(int index, int tokens, const cuda_attention_fn& attention) {
  const layer& weights = layers_[static_cast<std::size_t>(index)];
  const auto& [q_heads, kv_heads, dim] = std::tie(config_.q_heads, config_.kv_heads, config_.head_dim);
  blas_.multiply(weights.qkv.data(), qkv_size(), config_.hidden, normed_.data(), tokens, qkv_.data());
  if (weights.q_norm.size() > 0)
    cuda::norm_heads(stream_, qkv_.data(), tokens, qkv_size(), q_heads, weights.q_norm.data(), kv_heads,
                     weights.k_norm.data(), dim, config_.norm_eps);
  const auto heads = [&](int first, int count) {
    return kvilt::rows<float>{qkv_.data() + first * dim, qkv_size(), dim, count, dim};
  };
  const auto read_only = [](const kvilt::rows<float>& x) {
    return kvilt::rows<const float>{x.data, x.token_stride, x.head_stride, x.heads, x.dim};
  };
  attention(index, heads(0, q_heads), read_only(heads(q_heads, kv_heads)),
            read_only(heads(q_heads + kv_heads, kv_heads)), kvilt::packed_rows(attended_.data(), q_heads, dim));
  blas_.multiply(weights.attention_out.data(), config_.hidden, q_heads * dim, attended_.data(), tokens, delta_.data());
}

void cuda_transformer::run_ffn(const layer& weights, gate_activation gate, int tokens) {
  blas_.multiply(weights.gate_up.data(), 2 * config_.ffn, config_.hidden, normed_.data(), tokens, gate_up_.data());
  cuda::apply_gate(stream_, gate, gate_up_.data(), tokens, config_.ffn, gated_.data());
  blas_.multiply(weights.down.data(), config_.hidden, config_.ffn, gated_.data(), tokens, delta_.data());
}

void cuda_transformer::add_and_norm(const cuda::addition& added, const numbers& norm, int tokens,
                                    const numbers& out) const {
  cuda::add_and_norm(stream_, residual_.data(), added, norm.data(), config_.norm_eps, tokens, config_.hidden,
                     out.data());
}

void cuda_transformer::logits(const float* hidden, int rows, float* out) const {
  const numbers& head = output_.size() > 0 ? output_ : embedding_;
  blas_.multiply(head.data(), config_.vocab, config_.hidden, hidden, rows, out);
}

int cuda_transformer::likeliest(const float* logits) const {
  int token = 0;
  cuda::find_largest(stream_, logits, config_.vocab, likeliest_.data());
  check(cudaMemcpyAsync(&token, likeliest_.data(), sizeof(token), cudaMemcpyDeviceToHost, stream_), "the next token");
  stream_.wait();
  return token;
}

}  // namespace example
