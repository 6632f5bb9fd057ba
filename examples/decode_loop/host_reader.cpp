#include "host_reader.hpp"

#include <cstddef>
#include <utility>

namespace example {

host_reader::host_reader(transformer& model, const kvilt::host& exec, std::vector<std::unique_ptr<session>> caches,
                         arithmetic how)
    : model_(model), exec_(exec) {
  for (auto& cache : caches) caches_.push_back(std::make_unique<host_decoder>(model, std::move(cache), exec, how));
}

void host_reader::restart() {
  for (const auto& decode : caches_) decode->cache().restart();
}

void host_reader::read(std::span<const int> tokens, const std::function<void()>& tick) {
  const model_config& c = config();
  count_ = tokens.size();
  repeated_.clear();
  for (const auto& decode : caches_) {
    repeated_.insert(repeated_.end(), tokens.begin(), tokens.end());
    decode->cache().begin(static_cast<int>(count_), 1);
  }
  const std::size_t q_share = count_ * static_cast<std::size_t>(c.q_heads * c.head_dim);
  const std::size_t kv_share = count_ * static_cast<std::size_t>(c.kv_heads * c.head_dim);
  const auto attention = [&](int layer, int, float* q, float* k, const float* v, float* out) {
    exec_.for_each(kvilt::idx(caches_.size()), [&](kvilt::idx i, int) {
      const auto nth = std::size_t(i);
      caches_[nth]->cache().attend(kvilt::host(), layer, q + nth * q_share, k + nth * kv_share, v + nth * kv_share,
                                   out + nth * q_share);
    });
    tick();
  };
  model_.forward(repeated_, attention, hidden_);
  for (const auto& decode : caches_) decode->cache().commit();
}

void host_reader::logits(std::size_t cache, int first, int rows, float* out) {
  const std::size_t row = cache * count_ + static_cast<std::size_t>(first);
  model_.logits(hidden_.data() + row * static_cast<std::size_t>(config().hidden), rows, out);
}

}  // namespace example
