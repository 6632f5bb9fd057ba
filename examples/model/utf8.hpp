#pragma once

#include <cstddef>
#include <string_view>

namespace example {

// The length of the UTF-8 character that text starts with, or 0 where it starts with none: cut short, overlong, a
// surrogate or beyond U+10FFFF.
inline std::size_t utf8_size(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return text.empty() ? 0 : 1;
  if (lead < 0xc2 || lead > 0xf4 || !continues(1)) return 0;
  if (lead < 0xe0) return 2;
  if (!continues(2)) return 0;
  const unsigned second = byte(1);
  if (lead < 0xf0) return (lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ? 0 : 3;
  if (!continues(3)) return 0;
  return (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f) ? 0 : 4;
}

}  // namespace example
