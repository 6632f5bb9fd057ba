#pragma once

#include <kvilt/core/config.hpp>

namespace kvilt::inline KVILT_ABI::detail {

/// A piece of a name that is put together while compiling: text, or a number in digits.
struct name_part {
  static constexpr int longest = 48;
  char text[longest] = {};
  int size = 0;

  constexpr name_part(const char* from) {
    for (; *from; ++from) text[size++] = *from;
  }
  constexpr name_part(int number) {
    int unit = 1;
    while (number / unit >= 10) unit *= 10;
    for (; unit > 0; unit /= 10) text[size++] = char('0' + number / unit % 10);
  }
};

template <name_part... Parts>
struct joined_name {
  struct characters {
    char text[(Parts.size + ... + 1)] = {};
    constexpr characters() {
      int at = 0;
      (append(Parts, at), ...);
    }
    constexpr void append(const name_part& part, int& at) {
      for (int i = 0; i < part.size; ++i) text[at++] = part.text[i];
    }
  };
  static constexpr characters value{};
};

/// `Parts` one after another, as what `name()` of a type returns: `name_of_parts<"q4g", 32>()` is "q4g32".
template <name_part... Parts>
constexpr const char* name_of_parts() {
  return joined_name<Parts...>::value.text;
}

}  // namespace kvilt::inline KVILT_ABI::detail
