#pragma once

#include <kvilt/core/config.hpp>

#include <utility>

namespace kvilt::inline KVILT_ABI::detail {

/// A number that goes with what it counts: 0 in what was moved from.
template <class T>
class moved_count {
 public:
  moved_count(T n = 0) : n_(n) {}
  moved_count(const moved_count&) = default;
  moved_count& operator=(const moved_count&) = default;
  moved_count(moved_count&& other) noexcept : n_(std::exchange(other.n_, T(0))) {}
  moved_count& operator=(moved_count&& other) noexcept {
    n_ = std::exchange(other.n_, T(0));
    return *this;
  }

  operator T() const { return n_; }
  moved_count& operator+=(T more) {
    n_ += more;
    return *this;
  }
  moved_count& operator-=(T less) {
    n_ -= less;
    return *this;
  }

 private:
  T n_;
};

}  // namespace kvilt::inline KVILT_ABI::detail
