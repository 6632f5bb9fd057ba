#pragma once

#include <string>

// One face for both majors of Catch2: tests write Approx, support::containing and support::skip.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

namespace support {

#if __has_include(<catch2/catch_all.hpp>)

// Leaves the test, which then counts as skipped: as passed or failed it would tell a lie.
inline void skip(const std::string& reason) {
  SKIP(reason);
}

inline auto containing(const std::string& text) {
  return Catch::Matchers::ContainsSubstring(text);
}

#else

// Set by a test that leaves, read and cleared by main.cpp's listener.
inline bool& test_skipped() {
  static bool skipped = false;
  return skipped;
}

// Catch2 2 knows no skipped tests; what it throws at a failed REQUIRE leaves a test without judging it.
inline void skip(const std::string& reason) {
  test_skipped() = true;
  WARN("skipped: " << reason);
  throw Catch::TestFailureException{};
}

inline auto containing(const std::string& text) {
  return Catch::Matchers::Contains(text);
}

#endif

}  // namespace support
