#pragma once

#include <kvilt/core/executor.hpp>

#include <algorithm>
#include <cstdint>

namespace example {

// Splits [0, count) into one range for each worker and calls body(begin, end) for each; ranges shorter than `grain`
// are not worth a thread.
template <typename Body>
void run_ranges(const kvilt::host& exec, int count, int grain, const Body& body) {
  const int ranges = std::clamp(count / std::max(grain, 1), 1, exec.workers());
  const auto bound = [&](std::int64_t r) { return static_cast<int>(count * r / ranges); };
  exec.for_each(ranges, [&](kvilt::idx r, int) { body(bound(r), bound(r + 1)); });
}

}  // namespace example
