#include "cuda_backend.hpp"
#include "cuda_decoder.cuh"
#include "cuda_policies.cuh"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace example {
namespace {

std::vector<cuda_policy> all_cuda_policies() {
  std::vector<cuda_policy> all;
  [&]<int... Part>(std::integer_sequence<int, Part...>) {
    (add_cuda_policies<Part>(all), ...);
  }
  (std::make_integer_sequence<int, cuda_parts>());
  return all;
}

class cuda_backend final : public backend {
 public:
  cuda_backend(const transformer& model, int most_step) : model_(model, most_step) {}

  std::string name() const override {
    int device = 0;
    cudaDeviceProp properties{};
    check(cudaGetDevice(&device), "which GPU is current");
    check(cudaGetDeviceProperties(&properties, device), "what the GPU is");
    return properties.name;
  }
  std::unique_ptr<decoder> open(const policy_entry& policy, const session_shape& shape) override {
    return std::make_unique<cuda_decoder>(model_, session_of(policy, shape));
  }
  std::unique_ptr<reader> open(const std::vector<policy_entry>& policies, const session_shape& shape) override {
    std::vector<std::unique_ptr<cuda_session>> caches;
    for (const policy_entry& p : policies) caches.push_back(session_of(p, shape));
    return std::make_unique<cuda_reader>(model_, std::move(caches));
  }

 private:
  std::unique_ptr<cuda_session> session_of(const policy_entry& policy, const session_shape& shape) const {
    const auto found = std::ranges::find(policies_, policy.name, &cuda_policy::name);
    if (found == policies_.end()) throw std::logic_error("policy " + policy.name + " was compiled without its kernels");
    try {
      return found->open(shape, kvilt::gpu(model_.on()));
    } catch (const kvilt::invalid_argument& e) {  // of a model's heads that no kernel takes
      throw std::invalid_argument("policy " + policy.name + ": " + e.what());
    }
  }

  cuda_transformer model_;
  std::vector<cuda_policy> policies_ = all_cuda_policies();
};

}  // namespace

void require_cuda() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess)
    throw std::runtime_error(std::string("--device cuda: no GPU was found: ") + cudaGetErrorString(status));
  if (devices == 0) throw std::runtime_error("--device cuda: no GPU was found");
}

std::unique_ptr<backend> open_cuda_backend(const transformer& model, int most_step) {
  return std::make_unique<cuda_backend>(model, most_step);
}

}  // namespace example
