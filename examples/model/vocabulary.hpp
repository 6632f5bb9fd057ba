#pragma once

#include "gguf.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace example {

// What a token is for, with the numbers of tokenizer.ggml.token_type.
enum class token_kind : int { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

// The tokens of a file as it spells them; the strings lie in the file.
struct vocabulary {
  explicit vocabulary(const gguf_file& file);

  int size() const { return static_cast<int>(spellings.size()); }

  std::vector<std::string_view> spellings;
  std::vector<token_kind> kinds;
};

// Byte-pair encoding over bytes (GPT-2's): each byte has a printable stand-in, and tokens are spelt in those.
// SentencePiece: tokens are spelt in UTF-8 with U+2581 for a space.
// Each turns a spelling into the bytes it stands for.
std::string bytes_of_byte_level(std::string_view spelling);
std::string bytes_of_sentence_piece(std::string_view spelling);

// The byte that a SentencePiece byte token, "<0x0A>", stands for; -1 for another spelling.
int byte_of_spelling(std::string_view spelling);

}  // namespace example
