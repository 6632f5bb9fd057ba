#pragma once

#include <kvilt/core/config.hpp>

#include <charconv>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace kvilt::inline KVILT_ABI {

/// Base of everything that the library throws. Thrown before anything is written: the cache is as it was.
struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An argument is outside what was agreed; the message names the value and what was expected.
struct invalid_argument : error {
  using error::error;
};

/// A pool has too few free pages, an owner too few free sequences or tokens, a resource too few bytes.
struct out_of_pages : error {
  using error::error;
};

/// CUDA refused a call; the message says which, and CUDA's reason.
struct device_error : error {
  using error::error;
};

/// A file cannot be read or written, or is not what it should be: the message names the file, and says why.
struct file_error : error {
  using error::error;
};

/// What an error is about, for engines that hear of it through KVILT_RAISE.
enum class error_kind : unsigned char { invalid_argument, out_of_pages, device_error, file_error };

}  // namespace kvilt::inline KVILT_ABI

#if defined(KVILT_RAISE)
/// The engine's own, named when compiling (-DKVILT_RAISE=engine_error): called with every error before anything is
/// written. It may log, throw the engine's exception, or end the program. When it returns, the error goes its way:
/// thrown, or without exceptions a trap.
void KVILT_RAISE(kvilt::error_kind kind, const char* message);
#endif

namespace kvilt::inline KVILT_ABI {
namespace detail {

inline constexpr char error_prefix[] = "kvilt: ";

/// Without exceptions an error ends the program where it happened: nothing is written first.
template <class Error>
[[noreturn]] inline void raise(const std::string& what) {
  const std::string message = error_prefix + what;
#if defined(KVILT_RAISE)
  ::KVILT_RAISE(std::is_same_v<Error, out_of_pages>   ? error_kind::out_of_pages
                : std::is_same_v<Error, device_error> ? error_kind::device_error
                : std::is_same_v<Error, file_error>   ? error_kind::file_error
                                                      : error_kind::invalid_argument,
                message.c_str());
#endif
#if defined(__cpp_exceptions)
  throw Error(message);
#else
  __builtin_trap();
#endif
}

inline std::string text(const char* t) {
  return t;
}
inline std::string text(const std::string& t) {
  return t;
}
template <class Number>
requires requires(Number n) {
  std::to_string(n);
}
std::string text(Number n) {
  if constexpr (std::is_floating_point_v<Number>) {
    char digits[64];  // the shortest that say it exactly, in no locale
    return std::string(digits, std::to_chars(digits, digits + sizeof(digits), n).ptr);
  } else {
    return std::to_string(n);
  }
}

/// Throws `Error` with the parts joined. NOTE: a function of its own, which takes them by value: where nothing is wrong
/// they stay in registers.
template <class Error, class... Parts>
[[noreturn]] KVILT_COLD void refuse(Parts... parts) {
  std::string message;
  ((message += text(parts)), ...);
  raise<Error>(message);
}

/// Throws `Error` with the parts joined unless `held` is true. NOTE: always inlined, so that compilers know what holds
/// after it, and warn of nothing that it excludes.
template <class Error = invalid_argument, class... Parts>
KVILT_ALWAYS_INLINE void expects(bool held, const Parts&... parts) {
  if (!held) [[unlikely]]
    refuse<Error, std::decay_t<const Parts&>...>(parts...);
}

#if defined(__cpp_exceptions)
/// Called where an error is being handled: throws it again with `place` put first, "kvilt: group 1: ...". NOTE: the
/// engine has heard of it.
[[noreturn]] KVILT_COLD inline void raise_again(const std::string& place) {
  const auto with_place = [&](const error& e) {
    std::string message = e.what();
    if (message.rfind(error_prefix, 0) == 0) message.erase(0, sizeof(error_prefix) - 1);
    return error_prefix + place + ": " + message;
  };
  try {
    throw;
  } catch (const out_of_pages& e) {
    throw out_of_pages(with_place(e));
  } catch (const invalid_argument& e) {
    throw invalid_argument(with_place(e));
  }
}
#endif

/// Runs `body`; an error that it throws is thrown again with `where()` put first.
template <class Where, class Body>
KVILT_ALWAYS_INLINE decltype(auto) named([[maybe_unused]] const Where& where, Body&& body) {
#if defined(__cpp_exceptions)
  try {
    return body();
  } catch (const error&) {
    raise_again(where());
  }
#else
  return body();
#endif
}

}  // namespace detail
}  // namespace kvilt::inline KVILT_ABI
