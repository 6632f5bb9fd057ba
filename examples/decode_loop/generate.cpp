#include "generate.hpp"

#include "utf8.hpp"

#include <array>
#include <chrono>

namespace example {
namespace {

// Writes bytes as soon as they make whole characters.
class character_stream {
 public:
  explicit character_stream(std::ostream& out) : out_(out) {}

  void write(std::string_view bytes) {
    pending_ += bytes;
    std::size_t whole = 0;
    while (whole < pending_.size()) {
      const std::string_view rest = std::string_view(pending_).substr(whole);
      const std::size_t size = utf8_size(rest);
      if (size == 0 && rest.size() < longest) break;  // perhaps more of it is to come
      whole += size == 0 ? 1 : size;
    }
    out_ << pending_.substr(0, whole) << std::flush;
    pending_.erase(0, whole);
  }
  void finish() { out_ << pending_ << std::flush; }

 private:
  static constexpr std::size_t longest = 4;  // bytes of a character

  std::ostream& out_;
  std::string pending_;
};

// What stands around a user's question.
struct chat_template {
  std::string_view turn_begins, turn_ends;  // tokens that tell the template
  std::string_view before, after;
};

constexpr std::array<chat_template, 2> chat_templates{{
    {"<|im_start|>", "<|im_end|>", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"},
    {"<start_of_turn>", "<end_of_turn>", "<start_of_turn>user\n", "<end_of_turn>\n<start_of_turn>model\n"},
}};

// NOTE: a vocabulary has these tokens before the model has learnt to chat; a file with a template has learnt it.
const chat_template* chat_template_of(const tokenizer& words) {
  if (!words.has_chat_template()) return nullptr;
  for (const chat_template& chat : chat_templates)
    if (words.special(chat.turn_begins) && words.special(chat.turn_ends)) return &chat;
  return nullptr;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::vector<int> prompt_tokens(const tokenizer& words, std::string_view prompt) {
  const chat_template* chat = chat_template_of(words);
  if (chat == nullptr) return words.encode(prompt, {.add_bos = words.adds_bos()});
  std::vector<int> tokens = words.encode(chat->before, {.add_bos = words.adds_bos(), .parse_special = true});
  for (const auto& part : {words.encode(prompt), words.encode(chat->after, {.parse_special = true})})
    tokens.insert(tokens.end(), part.begin(), part.end());
  return tokens;
}

generation_speed answer(decoder& decode, const tokenizer& words, const std::vector<int>& prompt, int limit,
                        std::ostream& out) {
  generation_speed speed{.prompt_tokens = static_cast<int>(prompt.size())};
  auto start = std::chrono::steady_clock::now();
  int token = decode.feed(prompt);
  speed.prompt_seconds = seconds_since(start);
  start = std::chrono::steady_clock::now();
  character_stream text(out);
  for (int i = 0; i < limit && !words.ends(token); ++i) {
    text.write(words.decode(token));
    token = decode.feed(std::array{token});
    ++speed.answer_tokens;
  }
  text.finish();
  speed.answer_seconds = seconds_since(start);
  return speed;
}

}  // namespace example
