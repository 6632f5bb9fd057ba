#pragma once

namespace support {

// Whether ASan is at work, which makes each test many times as slow: what is repeated at random need not be as often
// there. NOTE: g++ says so by a macro, clang++ by a feature.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool is_sanitized = true;
#elif defined(__has_feature)
inline constexpr bool is_sanitized = __has_feature(address_sanitizer);
#else
inline constexpr bool is_sanitized = false;
#endif

}  // namespace support
