#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>

namespace support {

// A number that depends on its coordinates alone, so that a token is the same in any batch and any chunk.
inline std::uint64_t mixed(std::initializer_list<std::uint64_t> coordinates) {
  std::uint64_t state = 0;
  for (const std::uint64_t c : coordinates) {
    state += c + 0x9e3779b97f4a7c15u;  // S. Vigna's splitmix64
    state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9u;
    state = (state ^ state >> 27) * 0x94d049bb133111ebu;
    state ^= state >> 31;
  }
  return state;
}

// Close to normally distributed numbers, one after another; mean 0, variance 1.
class normal_numbers {
 public:
  explicit normal_numbers(std::uint64_t seed) : state_(seed) {}
  float next() {
    state_ += 0x9e3779b97f4a7c15u;
    const std::uint64_t bits = (state_ ^ state_ >> 31) * 0xbf58476d1ce4e5b9u;
    const int sum = int(bits & 0xffff) + int(bits >> 16 & 0xffff) + int(bits >> 32 & 0xffff) + int(bits >> 48);
    return float(sum - 131070) * 2.6429e-5f;  // of four 16-bit numbers: deviation 37,837
  }

 private:
  std::uint64_t state_;
};

class dice {
 public:
  explicit dice(std::uint64_t seed) : engine_(seed) {}
  // One of 0 ... n - 1.
  int below(int n) { return int(engine_() % std::uint64_t(n)); }

 private:
  std::mt19937_64 engine_;
};

}  // namespace support
