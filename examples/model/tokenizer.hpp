#pragma once

#include "byte_level_bpe.hpp"
#include "gguf.hpp"
#include "sentence_piece.hpp"
#include "vocabulary.hpp"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace example {

struct encode_options {
  bool add_bos = false;        // starts with BOS where the model has one; see tokenizer::adds_bos
  bool parse_special = false;  // reads "<|im_start|>" and its like as the control tokens they spell
};

// Text to tokens and back, by the tokenizer that a GGUF file carries: byte-level BPE ("gpt2") or SentencePiece
// ("llama"). The file must outlive it. Any bytes may be encoded, be they UTF-8 or not.
class tokenizer {
 public:
  explicit tokenizer(const gguf_file& file);

  int size() const { return vocabulary_.size(); }

  std::vector<int> encode(std::string_view text, encode_options options = {}) const;

  // The bytes of one token, for streaming: a character of UTF-8 may spread over several tokens. Control tokens have
  // none.
  const std::string& decode(int token) const;

  // The bytes of a text: those of its tokens, less the space that SentencePiece put in front.
  std::string decode(std::span<const int> tokens) const;

  // The special token that is spelt so, as in "<|im_start|>".
  std::optional<int> special(std::string_view spelling) const;

  std::optional<int> bos() const { return bos_; }
  std::optional<int> eos() const { return eos_; }
  std::optional<int> eot() const { return eot_; }  // ends a turn of a chat

  // Whether the file has a template for chats; which one, its special tokens tell.
  bool has_chat_template() const { return has_chat_template_; }

  // Whether the model's texts begin with BOS.
  bool adds_bos() const { return adds_bos_; }

  // Whether the token says that the model has finished.
  bool ends(int token) const { return token == eos_ || token == eot_; }

 private:
  struct special_token {
    std::string_view spelling;
    int token;
    bool always;  // user-defined: parsed in any text
  };

  void load_special_tokens();
  std::optional<int> read_token(const gguf_file& file, const std::string& key) const;
  const special_token* special_at(std::string_view text, bool parse_control) const;
  void encode_plain(std::string_view text, bool after_special, std::vector<int>& tokens) const;

  vocabulary vocabulary_;
  std::variant<std::monostate, byte_level_bpe, sentence_piece> encoder_;
  std::vector<std::string> bytes_;      // of each token
  std::vector<special_token> special_;  // the longest first
  std::optional<int> bos_, eos_, eot_;
  bool adds_bos_ = false;
  bool has_chat_template_ = false;
};

}  // namespace example
