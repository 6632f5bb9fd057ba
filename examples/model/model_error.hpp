#pragma once

#include <stdexcept>

namespace example {

// A model file that cannot be read or used. The message is one line: what was found, and what was expected.
class model_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace example
