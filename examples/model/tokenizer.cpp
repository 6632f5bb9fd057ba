#include "tokenizer.hpp"

#include <algorithm>
#include <array>

namespace example {
namespace {

// How the end of a turn is spelt, for files that do not name it.
constexpr std::array<std::string_view, 4> turn_ends{"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>"};

std::string bytes_of_token(const vocabulary& vocabulary, std::size_t token, bool byte_level) {
  const std::string_view spelling = vocabulary.spellings[token];
  switch (vocabulary.kinds[token]) {
    case token_kind::control:
    case token_kind::unknown:
      return {};
    case token_kind::user_defined:
      return std::string(spelling);
    case token_kind::byte:
      if (const int byte = byte_of_spelling(spelling); byte >= 0) return std::string(1, static_cast<char>(byte));
      break;
    case token_kind::normal:
    case token_kind::unused:
      break;
  }
  return byte_level ? bytes_of_byte_level(spelling) : bytes_of_sentence_piece(spelling);
}

}  // namespace

tokenizer::tokenizer(const gguf_file& file) : vocabulary_(file) {
  const auto model = file.metadata<std::string>("tokenizer.ggml.model");
  bool adds_bos = true;
  if (model == "gpt2") {
    adds_bos = encoder_.emplace<byte_level_bpe>(file, vocabulary_).adds_bos();
  } else if (model == "llama") {
    encoder_.emplace<sentence_piece>(file, vocabulary_);
  } else {
    throw model_error("tokenizer '" + model +
                      "' is not supported; supported: gpt2 (byte-level BPE), llama (SentencePiece)");
  }
  for (std::size_t i = 0; i < vocabulary_.spellings.size(); ++i) {
    bytes_.push_back(bytes_of_token(vocabulary_, i, model == "gpt2"));
  }
  load_special_tokens();
  bos_ = read_token(file, "tokenizer.ggml.bos_token_id");
  eos_ = read_token(file, "tokenizer.ggml.eos_token_id");
  eot_ = read_token(file, "tokenizer.ggml.eot_token_id");
  for (const std::string_view spelling : turn_ends) {
    if (!eot_) eot_ = special(spelling);
  }
  adds_bos_ = file.optional<bool>("tokenizer.ggml.add_bos_token").value_or(adds_bos) && bos_.has_value();
  has_chat_template_ = file.optional<std::string_view>("tokenizer.chat_template").has_value();
}

void tokenizer::load_special_tokens() {
  for (int token = 0; token < size(); ++token) {
    const auto index = static_cast<std::size_t>(token);
    const token_kind kind = vocabulary_.kinds[index];
    const bool is_special = kind == token_kind::control || kind == token_kind::user_defined;
    if (!is_special || vocabulary_.spellings[index].empty()) continue;
    special_.push_back({vocabulary_.spellings[index], token, kind == token_kind::user_defined});
  }
  std::stable_sort(special_.begin(), special_.end(), [](const special_token& a, const special_token& b) {
    return a.spelling.size() > b.spelling.size();
  });
}

std::optional<int> tokenizer::read_token(const gguf_file& file, const std::string& key) const {
  const std::optional<int> token = file.optional<int>(key);
  if (token && (*token < 0 || *token >= size())) {
    throw model_error("metadata '" + key + "' is " + std::to_string(*token) + "; expected a token below " +
                      std::to_string(size()));
  }
  return token;
}

const tokenizer::special_token* tokenizer::special_at(std::string_view text, bool parse_control) const {
  for (const special_token& s : special_) {
    if ((s.always || parse_control) && text.starts_with(s.spelling)) return &s;
  }
  return nullptr;
}

std::vector<int> tokenizer::encode(std::string_view text, encode_options options) const {
  std::vector<int> tokens;
  if (options.add_bos && bos_) tokens.push_back(*bos_);
  std::array<bool, 256> starts_special{};  // by first byte, so that ordinary text is passed over quickly
  for (const special_token& s : special_) {
    if (s.always || options.parse_special) starts_special[static_cast<unsigned char>(s.spelling[0])] = true;
  }
  bool after_special = true;
  std::size_t plain = 0;  // where the text that is not yet encoded begins
  for (std::size_t at = 0; at < text.size();) {
    const bool may_start = starts_special[static_cast<unsigned char>(text[at])];
    const special_token* found = may_start ? special_at(text.substr(at), options.parse_special) : nullptr;
    if (found == nullptr) {
      ++at;
      continue;
    }
    encode_plain(text.substr(plain, at - plain), after_special, tokens);
    tokens.push_back(found->token);
    after_special = true;
    at += found->spelling.size();
    plain = at;
  }
  encode_plain(text.substr(plain), after_special, tokens);
  return tokens;
}

void tokenizer::encode_plain(std::string_view text, bool after_special, std::vector<int>& tokens) const {
  if (const auto* bpe = std::get_if<byte_level_bpe>(&encoder_)) bpe->encode(text, tokens);
  if (const auto* pieces = std::get_if<sentence_piece>(&encoder_)) pieces->encode(text, after_special, tokens);
}

const std::string& tokenizer::decode(int token) const {
  if (token < 0 || token >= size()) {
    throw model_error("token " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(size()));
  }
  return bytes_[static_cast<std::size_t>(token)];
}

std::string tokenizer::decode(std::span<const int> tokens) const {
  const auto* pieces = std::get_if<sentence_piece>(&encoder_);
  const bool strips_prefix = pieces != nullptr && pieces->adds_space_prefix();
  bool after_special = true;
  std::string text;
  for (const int token : tokens) {
    std::string_view bytes = decode(token);
    const token_kind kind = vocabulary_.kinds[static_cast<std::size_t>(token)];
    const bool is_special = kind == token_kind::control || kind == token_kind::user_defined;
    if (strips_prefix && after_special && !is_special && bytes.starts_with(' ')) bytes.remove_prefix(1);
    after_special = is_special;
    text += bytes;
  }
  return text;
}

std::optional<int> tokenizer::special(std::string_view spelling) const {
  for (const special_token& s : special_) {
    if (s.spelling == spelling) return s.token;
  }
  return std::nullopt;
}

}  // namespace example
