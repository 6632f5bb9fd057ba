#include "sharing.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <iomanip>
#include <numeric>
#include <sstream>
#include <string>

namespace example {
namespace {

std::string milliseconds(double seconds) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << seconds * 1e3 << " ms";
  return text.str();
}

std::string megabytes(kvilt::idx bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << double(bytes) / 1e6 << " MB";
  return text.str();
}

// The `count` tokens of the largest logits, the largest first.
std::vector<int> likeliest(const std::vector<float>& logits, int count) {
  std::vector<int> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  std::ranges::stable_sort(tokens, std::greater(), [&](int t) { return logits[static_cast<std::size_t>(t)]; });
  tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(count)));
  return tokens;
}

}  // namespace

std::vector<shared_answer> answer_each(host_decoder& decode, const tokenizer& words, const std::vector<question>& asked,
                                       int limit, std::ostream& out) {
  session& cache = decode.cache();
  std::vector<shared_answer> answers;
  for (const question& q : asked) {
    cache.select(static_cast<int>(answers.size()));
    shared_answer& a = answers.emplace_back();
    a.there = static_cast<int>(cache.restart_with(q.tokens));
    out << "\n> " << q.text << "\n\n";
    const std::span<const int> rest = std::span(q.tokens).subspan(static_cast<std::size_t>(a.there));
    a.speed = answer(decode, words, q.tokens, limit, out);
    cache.name(rest);
    out << "\n\n(prompt: " << q.tokens.size() << " tokens, " << a.there << " of them there, " << rest.size()
        << " computed; first token after " << milliseconds(a.speed.prompt_seconds) << ")\n";
  }
  return answers;
}

generation_speed continue_each(host_decoder& decode, const tokenizer& words, std::span<const int> prompt, int count,
                               int limit, std::ostream& out) {
  using clock = std::chrono::steady_clock;
  const auto seconds = [](clock::duration d) { return std::chrono::duration<double>(d).count(); };
  session& cache = decode.cache();
  generation_speed speed{.prompt_tokens = static_cast<int>(prompt.size())};
  const auto start = clock::now();
  decode.feed(prompt);
  const auto fed = clock::now();
  speed.prompt_seconds = seconds(fed - start);
  const std::vector<int> first = likeliest(decode.logits(), count);
  for (int i = 1; i < count; ++i) cache.fork(i);
  for (int i = 0; i < count; ++i) {
    cache.select(i);
    out << '\n' << i + 1 << "> ";
    speed.answer_tokens += go_on(decode, words, first[static_cast<std::size_t>(i)], limit, out);
    out << '\n';
  }
  speed.answer_seconds = seconds(clock::now() - fed);
  return speed;
}

void print_pages(std::ostream& out, const shared_pages& pages) {
  if (pages.alone_pages == 0) {
    out << "(no pages: each sequence has a place of its own)\n";
    return;
  }
  out << "(pages: " << pages.pages << ", " << megabytes(pages.bytes) << "; " << pages.alone_pages << ", "
      << megabytes(pages.alone_bytes)
      << ", if each sequence had its own: " << megabytes(pages.alone_bytes - pages.bytes) << " saved)\n";
}

}  // namespace example
