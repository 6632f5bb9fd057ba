#pragma once

#include "backend.hpp"
#include "host_reader.hpp"

#include <memory>
#include <string>
#include <vector>

namespace example {

class host_backend final : public backend {
 public:
  // `how`: of decoding.
  host_backend(transformer& model, const kvilt::host& exec, arithmetic how) : model_(model), exec_(exec), how_(how) {}

  std::string name() const override {
    return std::to_string(exec_.workers()) + (exec_.workers() == 1 ? " thread" : " threads");
  }
  std::unique_ptr<decoder> open(const policy_entry& policy, const session_shape& shape) override {
    return std::make_unique<host_decoder>(model_, policy.open(shape), exec_, how_);
  }
  std::unique_ptr<reader> open(const std::vector<policy_entry>& policies, const session_shape& shape) override {
    std::vector<std::unique_ptr<session>> caches;
    for (const policy_entry& p : policies) caches.push_back(p.open(shape));
    return std::make_unique<host_reader>(model_, exec_, std::move(caches), how_);
  }

 private:
  transformer& model_;
  kvilt::host exec_;
  arithmetic how_;
};

}  // namespace example
