#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/instructions.hpp>
#include <kvilt/core/types.hpp>

#include <type_traits>

namespace kvilt::inline KVILT_ABI {

/// Runs independent items of work; what a thread pool is to the library. `core/thread_pool.hpp` has one; an engine
/// gives its own by deriving from this.
class executor {
 public:
  using task = void (*)(void* context, idx item, int worker);

  virtual ~executor() = default;
  /// How many workers `run` may use: `worker` is in [0, workers()).
  virtual int workers() const = 0;
  /// Calls `task(context, i, worker)` once for each i in [0, items), each worker one call at a time; returns when all
  /// are done. A task does not throw. Several threads may call it at once.
  virtual void run(idx items, task, void* context) = 0;
};

/// The host backend, where a CUDA stream stands in the device's verbs: on the calling thread, or on a pool.
class host {
 public:
  host() = default;
  explicit host(executor& pool) : pool_(&pool) {}

  /// The same with a set of instructions that the machine supports, where results are to be those of another machine.
  /// Throws `invalid_argument`.
  host with(instruction_set set) const {
    detail::expects(supports(set), name_of(set), " is not supported by this machine");
    host other = *this;
    other.instructions_ = set;
    return other;
  }

  int workers() const { return pool_ ? pool_->workers() : 1; }
  /// The widest of this machine, unless set.
  instruction_set instructions() const { return instructions_; }

  /// `body(item, worker)` for each item.
  template <class Body>
  void for_each(idx items, Body&& body) const {
    if (!pool_ || items < 2) {
      for (idx i = 0; i < items; ++i) body(i, 0);
      return;
    }
    using body_type = std::remove_reference_t<Body>;
    pool_->run(
        items, [](void* context, idx i, int worker) { (*static_cast<body_type*>(context))(i, worker); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  executor* pool_ = nullptr;
  instruction_set instructions_ = best_instructions();
};

}  // namespace kvilt::inline KVILT_ABI
