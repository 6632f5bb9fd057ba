#include "prompt_file.hpp"

#include "examples/tiny_model.hpp"
#include "generate.hpp"
#include "host_decoder.hpp"
#include "support/catch.hpp"
#include "support/saved_files.hpp"

#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

using support::mixed_layers, support::named, support::tiny_model;

constexpr int room = 200, step = 16;

// What a program wrote to its standard output and error, and its exit code.
struct outcome {
  int code = -1;
  std::string words;
};
outcome run_decode_loop(const std::string& arguments) {
  const support::test_folder folder;
  const std::string log = folder / "log";
  const int status =
      std::system((EXAMPLES_DIR "/decode_loop --threads 2 " + arguments + " > " + log + " 2>&1").c_str());
  std::stringstream words;
  words << std::ifstream(log).rdbuf();
  return {WEXITSTATUS(status), words.str()};
}

}  // namespace

TEST_CASE("decode_loop: a prompt from a file is answered as if it had been computed", "[examples]") {
  const bool mixed = GENERATE(false, true);
  const std::string policy = GENERATE("fp32", "paged16_int8_rot_s4_t64", "ring256_s4_int8", "paged32_kivi4_t32");
  INFO(policy << (mixed ? " of layers with windows" : ""));
  const support::test_folder folder;
  tiny_model tiny(mixed ? mixed_layers() : support::tiny_gguf_options());
  const std::string model = example::model_label(tiny.file(), example::arithmetic::fp32);
  const example::tokenizer words(tiny.file());
  const std::vector<int> prompt = tiny.some_tokens(120);
  const auto answer = [&](example::session& cache, std::ostream& out, const std::function<void()>& save) {
    example::host_decoder decode(tiny.model(), cache, kvilt::host());
    return example::answer(decode, words, prompt, 12, out, save);
  };

  const auto first = tiny.open(named(policy), room, step), second = tiny.open(named(policy), room, step);
  std::ostringstream computed, loaded;
  const auto all = answer(*first, computed, [&] {
    CHECK(first->length() == 119);
    example::save_prompt(kvilt::host(), *first, folder / "prompt", model, prompt);
  });
  CHECK(all.prompt_tokens == 120);
  const kvilt::sequence_file<> file(folder / "prompt");
  CHECK(example::load_prompt(kvilt::host(), *second, file, model, prompt) == 119);
  CHECK(answer(*second, loaded, {}).prompt_tokens == 1);
  CHECK(loaded.str() == computed.str());
  CHECK(second->length() == first->length());
}

TEST_CASE("decode_loop: of a file as much is taken as the prompt has in common with it", "[examples]") {
  const support::test_folder folder;
  tiny_model tiny;
  const std::string model = example::model_label(tiny.file(), example::arithmetic::fp32);
  std::vector<int> prompt = tiny.some_tokens(60);
  const auto cache = tiny.open(named("paged16_int8"), room, step);
  example::host_decoder decode(tiny.model(), *cache, kvilt::host());
  decode.feed(prompt);
  example::save_prompt(kvilt::host(), *cache, folder / "prompt", model, prompt);
  const kvilt::sequence_file<> file(folder / "prompt");
  const auto common = [&](const std::vector<int>& with) {
    const kvilt::idx found = example::load_prompt(kvilt::host(), *cache, file, model, with);
    CHECK(cache->length() == found);
    return found;
  };
  CHECK(common(prompt) == 59);  // the answer begins with the last one's logits
  prompt.push_back(3);
  CHECK(common(prompt) == 60);
  prompt[20] ^= 1;
  CHECK(common(prompt) == 20);
  prompt[0] ^= 1;
  CHECK(common(prompt) == 0);
  CHECK_THROWS_WITH(example::load_prompt(kvilt::host(), *cache, file, "another", prompt),
                    support::containing("'another' is wanted"));
  CHECK(cache->length() == 0);
  decode.feed(prompt);
  CHECK(cache->length() == 61);
}

TEST_CASE("decode_loop: the program saves a prompt and begins with it", "[examples]") {
  const support::test_folder folder;
  tiny_model tiny;
  const std::string file = folder / "prompt", text = folder / "text";
  std::ofstream(text) << "the hello is not what a prompt of this length says, but it is long enough for a cache";
  const std::string asked = "--model '" + tiny.path() + "' --generate-only --prompt-file " + text;
  const std::string common = asked + " --tokens 8";
  const auto answer_of = [](const std::string& words) { return words.substr(0, words.find("\n\n(prompt")); };
  const outcome computed = run_decode_loop(common + " --save " + file);
  INFO(computed.words);
  REQUIRE(computed.code == 0);
  CHECK_THAT(computed.words, support::containing("; saved in "));
  const outcome loaded = run_decode_loop(common + " --load " + file);
  INFO(loaded.words);
  REQUIRE(loaded.code == 0);
  CHECK_THAT(loaded.words, support::containing("tokens from " + file + " in "));
  CHECK_THAT(loaded.words, support::containing(" ms, 1 tokens, "));
  CHECK(answer_of(loaded.words) == answer_of(computed.words));
  // Saved without an answer it is the same.
  const std::string unanswered = folder / "unanswered";
  const outcome saved = run_decode_loop(asked + " --tokens 0 --save " + unanswered);
  INFO(saved.words);
  REQUIRE(saved.code == 0);
  CHECK_THAT(saved.words, support::containing("; saved in "));
  CHECK_THAT(saved.words, !support::containing("first token"));
  CHECK(support::bytes_of(unanswered) == support::bytes_of(file));

  const std::vector<std::pair<std::string, std::string>> wrong = {
      {" --load /nonexistent", "/nonexistent: cannot be read: No such file"},
      {" --load " + text, "text: it is no saved sequence of kvilt"},
      {" --policy fp16 --load " + file, "the cache is 'K fp16 of 16"},
      {" --integer-weights --load " + file, "by integers' is wanted"},
      {" --save /nonexistent/prompt", "/nonexistent/prompt.part: cannot be written: No such file"},
      {" --prompt another --save " + file, "--prompt excludes --prompt-file"},
      {" --decode-at 8 --save " + file, "--save and --load are of a prompt; --decode-at has none"},
      {" --device cuda --save " + file, "cuda"}};
  for (const auto& [arguments, expected] : wrong) {
    const outcome refused = run_decode_loop(common + arguments);
    INFO(arguments << "\n" << refused.words);
    CHECK(refused.code == 2);
    CHECK_THAT(refused.words, support::containing(expected));
  }
}
