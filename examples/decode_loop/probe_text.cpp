#include "probe_text.hpp"

#include "text.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace example {
namespace {

// The same numbers with every standard library, whose distributions differ.
class dice {
 public:
  explicit dice(std::uint64_t seed) : engine_(seed) {}

  std::size_t below(std::size_t n) { return std::size_t(engine_() % n); }
  template <class T>
  const T& one_of(const std::vector<T>& all) {
    return all[below(all.size())];
  }
  template <class T>
  void shuffle(std::vector<T>& all) {
    for (std::size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[below(i)]);
  }

 private:
  std::mt19937_64 engine_;
};

// What is held at a depth.
struct held_text {
  double depth;
  std::vector<int> tokens;
};

struct probe_question {
  double depth;
  std::vector<int> cue, answer;
};

void append(std::vector<int>& to, std::span<const int> tokens) {
  to.insert(to.end(), tokens.begin(), tokens.end());
}

// `held`: one for each depth, in their order.
probe_text laid_out(const probe_request& request, std::span<const int> window, int beginning,
                    const std::vector<held_text>& held, const std::vector<probe_question>& questions) {
  std::size_t taken = 0;
  for (const held_text& h : held) taken += h.tokens.size();
  for (const probe_question& q : questions) taken += q.cue.size() + q.answer.size();
  if (taken + std::size_t(beginning) >= window.size())
    throw std::invalid_argument("--probe " + request.name + " at " + std::to_string(request.depths.size()) +
                                " depths takes " + std::to_string(taken) + " tokens; --positions " +
                                std::to_string(window.size()) + " leaves none of the text between them");
  probe_text text;
  append(text.tokens, window.first(std::size_t(beginning)));
  const std::span<const int> others =
      window.subspan(std::size_t(beginning), window.size() - taken - std::size_t(beginning));
  std::size_t used = 0;
  for (const held_text& h : held) {
    const auto before = static_cast<std::size_t>(std::llround(h.depth / 100 * double(others.size())));
    append(text.tokens, others.subspan(used, before - used));
    append(text.tokens, h.tokens);
    used = before;
  }
  append(text.tokens, others.subspan(used));
  text.asked_from = static_cast<int>(text.tokens.size());
  for (const probe_question& q : questions) {
    append(text.tokens, q.cue);
    text.answers.push_back({q.depth, static_cast<int>(text.tokens.size()), static_cast<int>(q.answer.size())});
    append(text.tokens, q.answer);
  }
  return text;
}

probe_text copy_probe(const probe_request& request, std::span<const int> window, int beginning) {
  dice random(request.seed);
  const std::set<int> different(window.begin() + beginning, window.end());  // a frequent one says less of the next
  const std::vector<int> drawn(different.begin(), different.end());
  std::vector<held_text> held;
  std::vector<probe_question> questions;
  for (const double depth : request.depths) {
    std::vector<int> passage(copied_tokens);
    for (int& token : passage) token = random.one_of(drawn);
    questions.push_back(
        {depth, {passage.begin(), passage.begin() + cue_tokens}, {passage.begin() + cue_tokens, passage.end()}});
    held.push_back({depth, std::move(passage)});
  }
  random.shuffle(questions);
  return laid_out(request, window, beginning, held, questions);
}

// Two syllables.
std::string random_key(dice& random) {
  constexpr std::string_view consonants = "bdfgklmnprstvz", vowels = "aeiou";
  std::string key;
  for (int syllable = 0; syllable < 2; ++syllable) {
    key += consonants[random.below(consonants.size())];
    key += vowels[random.below(vowels.size())];
  }
  return key;
}

// NOTE: a line's tokens are parted, so that they are the same where it is asked for. The space before the value may be
// in its first.
probe_question question_of(double depth, const tokenizer& words, const std::string& cue, const std::string& value) {
  const std::vector<int> line = words.encode(cue + value);
  auto first = line.end();
  for (std::size_t bytes = 0; bytes < value.size();) bytes += words.decode(*--first).size();
  return {depth, {line.begin(), first}, {first, line.end()}};
}

probe_text retrieval_probe(const probe_request& request, std::span<const int> window, int beginning,
                           const tokenizer& words) {
  dice random(request.seed);
  std::set<std::string> keys;
  std::vector<held_text> held;
  std::vector<probe_question> questions;
  for (const double depth : request.depths) {
    std::vector<probe_question> pairs;
    std::vector<int> list;
    while (pairs.size() < listed_pairs) {
      const std::string key = random_key(random);
      if (!keys.insert(key).second) continue;
      const std::string value = std::to_string(1000 + random.below(9000));
      pairs.push_back(question_of(depth, words, "\n" + key + ": ", value));
      append(list, pairs.back().cue);
      append(list, pairs.back().answer);
    }
    append(list, words.encode("\n"));
    held.push_back({depth, std::move(list)});
    random.shuffle(pairs);
    questions.insert(questions.end(), pairs.begin(), pairs.begin() + asked_pairs);
  }
  random.shuffle(questions);
  return laid_out(request, window, beginning, held, questions);
}

}  // namespace

void check_probe(const probe_request& request) {
  if (request.name != "copy" && request.name != "retrieval")
    throw std::invalid_argument("--probe " + request.name + "; copy or retrieval is needed");
  if (request.depths.empty()) throw std::invalid_argument("--depths names none; percent from 0 to 100 are needed");
  for (std::size_t i = 0; i < request.depths.size(); ++i) {
    const double depth = request.depths[i];
    if (!(depth >= 0 && depth <= 100))
      throw std::invalid_argument("--depths " + format("%g", depth) + "; percent from 0 to 100 are needed");
    if (i > 0 && depth <= request.depths[i - 1])
      throw std::invalid_argument("--depths " + format("%g", depth) + " does not come after " +
                                  format("%g", request.depths[i - 1]));
  }
}

probe_text probe_text_of(const probe_request& request, std::span<const int> window, const tokenizer& words) {
  check_probe(request);
  const int beginning = words.adds_bos() ? 1 : 0;
  if (request.name == "copy") return copy_probe(request, window, beginning);
  return retrieval_probe(request, window, beginning, words);
}

}  // namespace example
