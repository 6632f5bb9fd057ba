#pragma once

#include "decoder.hpp"
#include "policies.hpp"
#include "reader.hpp"

#include <memory>
#include <string>
#include <vector>

namespace example {

// A model on what runs it, the host's processor or a GPU, which makes caches there by the policies of the list.
class backend {
 public:
  virtual ~backend() = default;

  // What it is, in words: "2 threads".
  virtual std::string name() const = 0;

  virtual std::unique_ptr<decoder> open(const policy_entry& policy, const session_shape& shape) = 0;
  virtual std::unique_ptr<reader> open(const std::vector<policy_entry>& policies, const session_shape& shape) = 0;
};

}  // namespace example
