#include "timing.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>

namespace example {

std::vector<decode_time> time_decoding(decoder& decode, std::span<const int> text, std::span<const int> depths) {
  using clock = std::chrono::steady_clock;
  std::vector<decode_time> times;
  std::size_t at = 0;
  for (const int depth : depths) {
    const auto first = std::max(at, static_cast<std::size_t>(depth));
    if (first > at) decode.feed(text.subspan(at, first - at));
    std::array<double, timed_tokens> milliseconds{};
    for (std::size_t i = 0; i < milliseconds.size(); ++i) {
      const auto start = clock::now();
      decode.feed(text.subspan(first + i, 1));
      milliseconds[i] = std::chrono::duration<double, std::milli>(clock::now() - start).count();
    }
    at = first + timed_tokens;
    std::ranges::nth_element(milliseconds, milliseconds.begin() + timed_tokens / 2);
    times.push_back({static_cast<int>(first), milliseconds[timed_tokens / 2]});
  }
  return times;
}

}  // namespace example
