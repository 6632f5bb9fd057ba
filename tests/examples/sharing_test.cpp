#include "sharing.hpp"

#include "examples/tiny_model.hpp"
#include "support/catch.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace {

using example::question;
using support::named, support::tiny_model;

std::unique_ptr<example::session> open_many(const tiny_model& tiny, const char* policy, int sequences, bool prefixes) {
  example::session_shape shape = tiny.shape(160, 8);
  shape.sequences = sequences;
  shape.prefixes = prefixes;
  return named(policy).open(shape);
}

// The greedy answer to a prompt in a cache of its own.
std::vector<int> answer_alone(tiny_model& tiny, const char* policy, const std::vector<int>& prompt, int first,
                              int limit, const example::tokenizer& words) {
  const auto cache = tiny.open(named(policy), 160, 8);
  example::host_decoder decode(tiny.model(), *cache, kvilt::host());
  const int likeliest = decode.feed(prompt);
  std::vector<int> said;
  for (int token = first < 0 ? likeliest : first; int(said.size()) < limit && !words.ends(token);) {
    said.push_back(token);
    token = decode.feed(std::array{token});
  }
  return said;
}

std::string text_of(const example::tokenizer& words, const std::vector<int>& tokens) {
  std::string text;
  for (const int t : tokens) text += words.decode(t);
  return text;
}

struct program_result {
  int code;
  std::string out, err;
};
program_result run_decode_loop(const std::string& arguments) {
  const std::string out = support::temporary_path("share.out"), err = support::temporary_path("share.err");
  const int status =
      std::system(("'" EXAMPLES_DIR "/decode_loop' " + arguments + " > '" + out + "' 2> '" + err + "'").c_str());
  const auto contents = [](const std::string& path) {
    std::ifstream file(path);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    std::filesystem::remove(path);
    return text;
  };
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(out), contents(err)};
}

}  // namespace

TEST_CASE("sharing: what prompts begin with is computed once", "[examples]") {
  tiny_model tiny;
  const example::tokenizer words(tiny.file());
  const std::vector<int> some = tiny.some_tokens(90);
  std::vector<question> asked{{"a", some}, {"b", some}, {"c", {some.begin(), some.begin() + 32}}, {"d", {3, 4, 5}}};
  asked[1].tokens.resize(70), asked[1].tokens[65] = (some[65] + 1) % tiny.model().config().vocab;
  for (const char* policy : {"paged16_fp16", "paged16_int8"}) {
    const auto cache = open_many(tiny, policy, 4, true);
    example::host_decoder decode(tiny.model(), *cache, kvilt::host());
    std::ostringstream out;
    const auto answers = example::answer_each(decode, words, asked, 0, out);
    CHECK((answers[0].there == 0 && answers[0].speed.prompt_tokens == 90));
    CHECK((answers[1].there == 64 && answers[1].speed.prompt_tokens == 6));
    CHECK((answers[2].there == 16 && answers[2].speed.prompt_tokens == 16));
    CHECK((answers[3].there == 0 && answers[3].speed.prompt_tokens == 3));
    // 6 pages, one more, none, for it has been computed before, and one.
    const example::shared_pages pages = cache->pages();
    CHECK((pages.pages == 6 + 1 + 0 + 1 && pages.alone_pages == 6 + 5 + 2 + 1));
    CHECK(pages.alone_bytes == pages.bytes / pages.pages * pages.alone_pages);
    CHECK(cache->length() == 3);
    // What comes next is what it would be in a cache of its own.
    for (const int i : {1, 2}) {
      cache->select(i);
      decode.feed(std::array{7});
      const auto own = tiny.open(named(policy), 160, 8);
      example::host_decoder alone(tiny.model(), *own, kvilt::host());
      alone.feed(asked[std::size_t(i)].tokens);
      alone.feed(std::array{7});
      double most = 0;
      for (std::size_t t = 0; t < alone.logits().size(); ++t)
        most = std::max(most, double(std::abs(alone.logits()[t] - decode.logits()[t])));
      CHECK(most < 1e-3);
    }
  }
}

TEST_CASE("sharing: continuations of one prompt are what each would be alone", "[examples]") {
  tiny_model tiny;
  const example::tokenizer words(tiny.file());
  const std::vector<int> prompt = tiny.some_tokens(37);
  for (const char* policy : {"paged16_int8", "paged16_int8_rot_s4_t64", "int8"}) {
    const auto cache = open_many(tiny, policy, 3, false);
    example::host_decoder decode(tiny.model(), *cache, kvilt::host());
    std::ostringstream out;
    const example::generation_speed speed = example::continue_each(decode, words, prompt, 3, 9, out);
    CHECK(speed.prompt_tokens == 37);
    const auto own = tiny.open(named(policy), 160, 8);
    example::host_decoder alone(tiny.model(), *own, kvilt::host());
    alone.feed(prompt);
    std::vector<int> by_logit(alone.logits().size());
    for (std::size_t i = 0; i < by_logit.size(); ++i) by_logit[i] = int(i);
    std::ranges::stable_sort(
        by_logit, [&](int a, int b) { return alone.logits()[std::size_t(a)] > alone.logits()[std::size_t(b)]; });
    std::ostringstream wanted;
    int tokens = 0;
    for (int i = 0; i < 3; ++i) {
      const std::vector<int> said = answer_alone(tiny, policy, prompt, by_logit[std::size_t(i)], 9, words);
      wanted << '\n' << i + 1 << "> " << text_of(words, said) << '\n';
      tokens += int(said.size());
    }
    CHECK(out.str() == wanted.str());
    CHECK(speed.answer_tokens == tokens);
    const example::shared_pages pages = cache->pages();
    if (std::string(policy) == "paged16_int8") CHECK(pages.alone_pages - pages.pages == 2 * 2);
    if (std::string(policy) == "int8") CHECK(pages.alone_pages == 0);
  }
}

TEST_CASE("sharing: the program says what was there and what it saved", "[examples]") {
  tiny_model tiny;
  const std::string model = "--generate-only --tokens 5 --model '" + tiny.path() + "' ";
  std::string told = "the hello world ";
  for (int i = 0; i < 4; ++i) told += told;
  const std::string file = support::temporary_path("told.txt");
  std::ofstream(file) << told;
  const std::string prompts = " --prompt 'a question' --prompt 'another one, longer'";
  for (const std::string& prefix : {"'" + told + "'", "'@" + file + "'"}) {
    const program_result result = run_decode_loop(model + "--shared-prefix " + prefix + prompts);
    INFO(result.out << result.err);
    REQUIRE(result.code == 0);
    const std::regex cost("\\(prompt: (\\d+) tokens, (\\d+) of them there, (\\d+) computed; first token after");
    std::vector<std::array<int, 3>> costs;
    for (auto m = std::sregex_iterator(result.out.begin(), result.out.end(), cost); m != std::sregex_iterator(); ++m)
      costs.push_back({std::stoi((*m)[1]), std::stoi((*m)[2]), std::stoi((*m)[3])});
    REQUIRE(costs.size() == 2);
    CHECK((costs[0][1] == 0 && costs[0][2] == costs[0][0]));
    CHECK((costs[1][1] > 16 && costs[1][1] % 16 == 0 && costs[1][2] == costs[1][0] - costs[1][1]));
    CHECK_THAT(result.out, support::containing("> another one, longer"));
    CHECK_THAT(result.out, support::containing("In one cache, paged16_int8:"));
    CHECK_THAT(result.out, support::containing("if each sequence had its own"));
  }
  const program_result forked = run_decode_loop(model + "--prompt '" + told + "' --fork 3");
  INFO(forked.out << forked.err);
  REQUIRE(forked.code == 0);
  CHECK_THAT(forked.out, support::containing("computed once"));
  CHECK_THAT(forked.out, support::containing("; 3 answers: "));
  for (const auto& [arguments, expected] : std::vector<std::pair<std::string, std::string>>{
           {"--shared-prefix @/nonexistent.txt", "/nonexistent.txt"},
           {"--fork 2 --prompt a --prompt b", "--fork 2 continues one --prompt"},
           {"--fork 0", "--fork"},
           {"--fork 1024", "--fork 1024 continues the prompt by as many tokens; the model has "},
           {"--shared-prefix x --policy paged16_int8_rot_s4_t64", "eviction or 16-bit sinks"},
           {"--shared-prefix x --policy int8", "a policy with pages"},
           {"--shared-prefix x --device cuda", "the processor's alone"}}) {
    const program_result refused = run_decode_loop(model + arguments);
    INFO(arguments << "\n" << refused.err);
    CHECK(refused.code == 2);
    CHECK(std::count(refused.err.begin(), refused.err.end(), '\n') == 1);
    CHECK_THAT(refused.err, support::containing(expected));
  }
  std::filesystem::remove(file);
}
