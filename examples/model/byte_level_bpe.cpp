#include "byte_level_bpe.hpp"

#include "merging.hpp"

namespace example {
namespace {

std::uint64_t pair_key(int left, int right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

}  // namespace

byte_level_bpe::byte_level_bpe(const gguf_file& file, const vocabulary& vocabulary)
    : splitter_(file.optional<std::string>("tokenizer.ggml.pre").value_or("default")) {
  for (int token = 0; token < vocabulary.size(); ++token) {
    const auto index = static_cast<std::size_t>(token);
    const token_kind kind = vocabulary.kinds[index];
    if (kind == token_kind::control || kind == token_kind::unknown) continue;
    tokens_.emplace(bytes_of_byte_level(vocabulary.spellings[index]), token);
  }
  for (std::size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
    byte_tokens_[byte] = token_of(std::string(1, static_cast<char>(byte)));
  }
  load_merges(file);
}

void byte_level_bpe::load_merges(const gguf_file& file) {
  int rank = 0;
  for (const std::string_view line : file.metadata<std::vector<std::string_view>>("tokenizer.ggml.merges")) {
    const std::size_t space = line.find(' ', 1);  // a stand-in is never a space, but a raw one may come first
    const std::string left = bytes_of_byte_level(line.substr(0, space));
    const std::string right = space == line.npos ? std::string() : bytes_of_byte_level(line.substr(space + 1));
    const int left_token = token_of(left);
    const int right_token = token_of(right);
    const int token = token_of(left + right);
    if (left_token < 0 || right_token < 0 || token < 0) {
      throw model_error("merge '" + std::string(line) + "' has a part that is not in the vocabulary");
    }
    merges_.emplace(pair_key(left_token, right_token), merge{rank++, token});
  }
}

int byte_level_bpe::token_of(const std::string& bytes) const {
  const auto found = tokens_.find(bytes);
  return found == tokens_.end() ? -1 : found->second;
}

void byte_level_bpe::encode(std::string_view text, std::vector<int>& tokens) const {
  for (const std::string_view piece : splitter_.split(text)) encode_piece(piece, tokens);
}

void byte_level_bpe::encode_piece(std::string_view piece, std::vector<int>& tokens) const {
  if (splitter_.prefers_whole_tokens()) {
    if (const int token = token_of(std::string(piece)); token >= 0) {
      tokens.push_back(token);
      return;
    }
  }
  std::vector<symbol> symbols;
  for (std::size_t i = 0; i < piece.size(); ++i) {
    const auto byte = static_cast<unsigned char>(piece[i]);
    if (byte_tokens_[byte] < 0) {
      throw model_error("the vocabulary has no token for byte " + std::to_string(byte) + ", which the text holds");
    }
    symbols.push_back({i, 1, byte_tokens_[byte]});
  }
  merge_symbols(symbols, [&](const symbol& left, const symbol& right) -> std::optional<joined> {
    const auto found = merges_.find(pair_key(left.token, right.token));
    if (found == merges_.end()) return std::nullopt;
    return joined{static_cast<double>(found->second.rank), found->second.token};
  });
  for (const symbol& s : symbols) tokens.push_back(s.token);
}

}  // namespace example
