#include "sentence_piece.hpp"

#include "merging.hpp"
#include "utf8.hpp"

#include <algorithm>
#include <optional>
#include <string>

namespace example {

sentence_piece::sentence_piece(const gguf_file& file, const vocabulary& vocabulary)
    : adds_space_prefix_(file.optional<bool>("tokenizer.ggml.add_space_prefix").value_or(true)),
      unknown_token_(-1),
      scores_(file.metadata<std::vector<float>>("tokenizer.ggml.scores")) {
  if (scores_.size() != vocabulary.spellings.size()) {
    throw model_error("tokenizer.ggml.scores has " + std::to_string(scores_.size()) + " entries; expected " +
                      std::to_string(vocabulary.spellings.size()));
  }
  byte_tokens_.fill(-1);
  for (int token = 0; token < vocabulary.size(); ++token) {
    const auto index = static_cast<std::size_t>(token);
    const std::string_view spelling = vocabulary.spellings[index];
    const token_kind kind = vocabulary.kinds[index];
    if (kind == token_kind::unknown) unknown_token_ = token;
    if (kind == token_kind::normal || kind == token_kind::user_defined) tokens_.emplace(spelling, token);
    const int byte = kind == token_kind::byte ? byte_of_spelling(spelling) : -1;
    if (byte >= 0) byte_tokens_[static_cast<std::size_t>(byte)] = token;
  }
}

void sentence_piece::encode(std::string_view text, bool after_special, std::vector<int>& tokens) const {
  if (text.empty()) return;
  std::string spelling;
  if (adds_space_prefix_ && after_special) spelling = "\xe2\x96\x81";
  for (const char c : text) {
    if (c == ' ') {
      spelling += "\xe2\x96\x81";
    } else {
      spelling += c;
    }
  }
  const std::string_view all = spelling;
  const auto find = [&](std::size_t begin, std::size_t size) {
    const auto found = tokens_.find(all.substr(begin, size));
    return found == tokens_.end() ? -1 : found->second;
  };
  std::vector<symbol> symbols;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t size = std::max<std::size_t>(utf8_size(all.substr(at)), 1);
    symbols.push_back({at, size, find(at, size)});
    at += size;
  }
  merge_symbols(symbols, [&](const symbol& left, const symbol& right) -> std::optional<joined> {
    const int token = find(left.begin, left.size + right.size);
    if (token < 0) return std::nullopt;
    return joined{-static_cast<double>(scores_[static_cast<std::size_t>(token)]), token};
  });
  for (const symbol& s : symbols) {
    if (s.token >= 0) {
      tokens.push_back(s.token);
    } else {
      append_bytes(all.substr(s.begin, s.size), tokens);
    }
  }
}

void sentence_piece::append_bytes(std::string_view bytes, std::vector<int>& tokens) const {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    const int token = byte_tokens_[byte] >= 0 ? byte_tokens_[byte] : unknown_token_;
    if (token < 0) {
      throw model_error("the vocabulary has no token for byte " + std::to_string(byte) + ", which the text holds");
    }
    tokens.push_back(token);
  }
}

}  // namespace example
