#pragma once

#include <kvilt/core/types.hpp>

namespace example {

// What one sequence in a cache is beside its steps, wherever the cache lies.
class kept_text {
 public:
  virtual ~kept_text() = default;

  virtual void commit() = 0;

  // Ends a single planned step as if it had not been.
  virtual void cancel() = 0;

  virtual kvilt::idx length() const = 0;
  virtual int max_step() const = 0;

  // Forgets everything.
  virtual void restart() = 0;

  // Bytes of K and V that memory was asked for.
  virtual kvilt::idx cache_bytes() const = 0;
};

}  // namespace example
