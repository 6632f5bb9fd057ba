#pragma once

#include <cstdio>
#include <string>

namespace example {

// As printf writes it, 63 letters at most.
template <class... Values>
std::string format(const char* pattern, Values... values) {
  char text[64];
  std::snprintf(text, sizeof(text), pattern, values...);
  return text;
}

}  // namespace example
