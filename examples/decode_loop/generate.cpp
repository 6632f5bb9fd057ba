#include "generate.hpp"

#include "utf8.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <span>

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

// What stands around a user's question, and around what the model is told before it.
struct chat_template {
  std::string_view turn_begins, turn_ends;  // tokens that tell the template
  std::string_view before, after;
  std::string_view before_system, after_system;
};

constexpr std::array<chat_template, 2> chat_templates{{
    {"<|im_start|>", "<|im_end|>", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", "<|im_start|>system\n",
     "<|im_end|>\n<|im_start|>user\n"},
    // It has no system: what is said first stands at the beginning of the user's turn.
    {"<start_of_turn>", "<end_of_turn>", "<start_of_turn>user\n", "<end_of_turn>\n<start_of_turn>model\n",
     "<start_of_turn>user\n", "\n\n"},
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

std::vector<int> prompt_tokens(const tokenizer& words, std::string_view prompt, std::string_view before) {
  const chat_template* chat = chat_template_of(words);
  std::vector<int> tokens;
  // NOTE: each part by itself, so that the tokens of what is told first do not depend on what follows.
  const auto add = [&](std::string_view text, encode_options how = {}) {
    how.add_bos = tokens.empty() && words.adds_bos();
    const std::vector<int> part = words.encode(text, how);
    tokens.insert(tokens.end(), part.begin(), part.end());
  };
  const encode_options special{.parse_special = true};
  if (chat != nullptr) add(before.empty() ? chat->before : chat->before_system, special);
  if (!before.empty()) add(before);
  if (!before.empty() && chat != nullptr) add(chat->after_system, special);
  add(prompt);
  if (chat != nullptr) add(chat->after, special);
  return tokens;
}

generation_speed answer(decoder& decode, const tokenizer& words, std::span<const int> prompt, int limit,
                        std::ostream& out, const std::function<void()>& before_last) {
  std::span<const int> rest = prompt.subspan(std::size_t(decode.length()));
  generation_speed speed{.prompt_tokens = static_cast<int>(rest.size())};
  auto start = std::chrono::steady_clock::now();
  if (before_last) {
    if (rest.size() > 1) decode.feed(rest.first(rest.size() - 1));
    speed.prompt_seconds = seconds_since(start);
    before_last();
    if (limit == 0) return speed;  // what the last token says is not asked
    start = std::chrono::steady_clock::now();
    rest = rest.last(1);
  }
  const int token = decode.feed(rest);
  speed.prompt_seconds += seconds_since(start);
  start = std::chrono::steady_clock::now();
  speed.answer_tokens = go_on(decode, words, token, limit, out);
  speed.answer_seconds = seconds_since(start);
  return speed;
}

int go_on(decoder& decode, const tokenizer& words, int token, int limit, std::ostream& out) {
  character_stream text(out);
  int count = 0;
  for (; count < limit && !words.ends(token); ++count) {
    text.write(words.decode(token));
    token = decode.feed(std::array{token});
  }
  text.finish();
  return count;
}

}  // namespace example
