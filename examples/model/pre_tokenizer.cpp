#include "pre_tokenizer.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include "model_error.hpp"
#include "utf8.hpp"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace example {
namespace {

// The rules themselves are data of the models: those of GPT-2, Llama 3 and Qwen 2 as their tokenizers publish them, and
// the steps "smollm" and "default" as llama.cpp defines the names. \s is PCRE2's, which differs from White_Space in
// U+180E alone.
constexpr const char* gpt2_words = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* llama3_words = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
                                     R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* qwen2_words = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
                                    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct rule_set {
  const char* name;
  std::array<const char*, 4> steps;
  bool prefers_whole_tokens;
  bool adds_bos;
};

constexpr std::array<rule_set, 7> rule_sets{{
    {"default", {R"([\p{P}$+<=>^~|]+)", gpt2_words, R"(\p{N}+)", "[0-9][0-9][0-9]"}, false, false},
    {"gpt-2", {gpt2_words}, false, false},
    {"smollm", {R"(\p{N})", gpt2_words}, false, false},
    {"llama-bpe", {llama3_words}, true, true},
    {"llama3", {llama3_words}, true, true},
    {"llama-v3", {llama3_words}, true, true},
    {"qwen2", {qwen2_words}, false, false},
}};

const rule_set& find_rules(const std::string& name) {
  std::string known;
  for (const rule_set& rules : rule_sets) {
    if (name == rules.name) return rules;
    known += (known.empty() ? "" : ", ") + std::string(rules.name);
  }
  throw model_error("pre-tokenizer '" + name + "' is not supported; supported: " + known);
}

// The bytes that text starts with and that are UTF-8. Checked here once: PCRE2 would check all that follows a match
// anew for each match.
std::size_t valid_prefix(std::string_view text) {
  std::size_t valid = 0;
  for (std::size_t size = utf8_size(text); size > 0; size = utf8_size(text.substr(valid))) valid += size;
  return valid;
}

}  // namespace

// One compiled pattern.
class pre_tokenizer::expression {
 public:
  explicit expression(std::string_view pattern) {
    int error = 0;
    PCRE2_SIZE at = 0;
    constexpr std::uint32_t options = PCRE2_UTF | PCRE2_UCP;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &at, nullptr);
    if (code_ == nullptr) throw model_error("PCRE2 refuses the pattern " + std::string(pattern));
  }
  ~expression() { pcre2_code_free(code_); }
  expression(const expression&) = delete;
  expression& operator=(const expression&) = delete;

  // Appends the matches in valid UTF-8 text, and the stretches between them, in order.
  void split(std::string_view text, pcre2_match_data* match, std::vector<std::string_view>& pieces) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    std::size_t done = 0;
    while (done < text.size()) {
      const int found = pcre2_match(code_, subject, text.size(), done, PCRE2_NO_UTF_CHECK, match, nullptr);
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0) throw model_error("PCRE2 gave up on the text with error " + std::to_string(found));
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match);
      if (bounds[0] > done) pieces.push_back(text.substr(done, bounds[0] - done));
      pieces.push_back(text.substr(bounds[0], bounds[1] - bounds[0]));  // no pattern matches the empty string
      done = bounds[1];
    }
    if (done < text.size()) pieces.push_back(text.substr(done));
  }

 private:
  pcre2_code* code_ = nullptr;
};

pre_tokenizer::pre_tokenizer(const std::string& name) {
  const rule_set& rules = find_rules(name);
  for (const char* step : rules.steps) {
    if (step != nullptr) steps_.push_back(std::make_unique<expression>(step));
  }
  prefers_whole_tokens_ = rules.prefers_whole_tokens;
  adds_bos_ = rules.adds_bos;
}

pre_tokenizer::pre_tokenizer(pre_tokenizer&&) noexcept = default;
pre_tokenizer& pre_tokenizer::operator=(pre_tokenizer&&) noexcept = default;
pre_tokenizer::~pre_tokenizer() = default;

std::vector<std::string_view> pre_tokenizer::split(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(pcre2_match_data_create(1, nullptr),
                                                                             pcre2_match_data_free);
  std::vector<std::string_view> all;
  while (!text.empty()) {
    const std::size_t valid = valid_prefix(text);
    std::vector<std::string_view> pieces{text.substr(0, std::max<std::size_t>(valid, 1))};
    text.remove_prefix(pieces.front().size());
    for (const auto& step : steps_) {
      if (valid == 0) break;
      std::vector<std::string_view> finer;
      for (const std::string_view piece : pieces) step->split(piece, match.get(), finer);
      pieces = std::move(finer);
    }
    all.insert(all.end(), pieces.begin(), pieces.end());
  }
  return all;
}

}  // namespace example
