#include "vocabulary.hpp"

#include "utf8.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace example {
namespace {

// GPT-2's alphabet: printable Latin-1 bytes stand for themselves, and the others, in order, for U+0100 and up.
constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

constexpr std::size_t alphabet_end = 0x100 + 68;  // 68 bytes are not printable

// The byte that each code point stands for, -1 where none does.
constexpr std::array<int, alphabet_end> byte_of_stand_in = [] {
  std::array<int, alphabet_end> table{};
  table.fill(-1);
  std::size_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    table[stands_for_itself(byte) ? static_cast<std::size_t>(byte) : next++] = byte;
  return table;
}();

// The stand-ins all take one or two bytes of UTF-8.
std::size_t short_code_point(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (character.size() == 1 && lead < 0x80) return lead;
  if (character.size() != 2) return alphabet_end;
  return (lead & 0x1fu) << 6 | (static_cast<unsigned char>(character[1]) & 0x3fu);
}

}  // namespace

vocabulary::vocabulary(const gguf_file& file)
    : spellings(file.metadata<std::vector<std::string_view>>("tokenizer.ggml.tokens")) {
  kinds.assign(spellings.size(), token_kind::normal);
  const auto types = file.optional<std::vector<int>>("tokenizer.ggml.token_type");
  if (!types) return;
  if (types->size() != spellings.size()) {
    throw model_error("tokenizer.ggml.token_type has " + std::to_string(types->size()) + " entries; expected " +
                      std::to_string(spellings.size()));
  }
  for (std::size_t i = 0; i < kinds.size(); ++i) kinds[i] = static_cast<token_kind>((*types)[i]);
}

std::string bytes_of_byte_level(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    const std::string_view character = spelling.substr(0, std::max<std::size_t>(utf8_size(spelling), 1));
    const std::size_t code_point = short_code_point(character);
    if (code_point < alphabet_end && byte_of_stand_in[code_point] >= 0) {
      bytes += static_cast<char>(byte_of_stand_in[code_point]);
    } else {
      bytes += character;
    }
    spelling.remove_prefix(character.size());
  }
  return bytes;
}

std::string bytes_of_sentence_piece(std::string_view spelling) {
  constexpr std::string_view space = "\xe2\x96\x81";
  std::string bytes;
  while (!spelling.empty()) {
    const bool is_space = spelling.starts_with(space);
    bytes += is_space ? ' ' : spelling[0];
    spelling.remove_prefix(is_space ? space.size() : 1);
  }
  return bytes;
}

int byte_of_spelling(std::string_view spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') return -1;
  int byte = -1;
  const auto parsed = std::from_chars(spelling.data() + 3, spelling.data() + 5, byte, 16);
  return parsed.ptr == spelling.data() + 5 ? byte : -1;
}

}  // namespace example
