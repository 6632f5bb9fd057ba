#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

// What a fuzz test is: bytes in, and no way out but a return. libFuzzer calls it with bytes of its own, replay.cpp with
// those of the corpus.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fuzz {

// Ends the program, as a finding.
[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "found: %s\n", what.c_str());
  std::abort();
}

// Bytes as choices; zeros when they are used up.
class choices {
 public:
  choices(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}
  bool empty() const { return at_ == end_; }
  // One of 0 ... n - 1, n at most 256.
  int below(int n) { return empty() ? 0 : *at_++ % n; }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

}  // namespace fuzz
