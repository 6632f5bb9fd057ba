#include "probe.hpp"

#include "examples/brute_force.hpp"
#include "examples/tiny_model.hpp"
#include "host_reader.hpp"
#include "probe_text.hpp"
#include "support/catch.hpp"
#include "support/saved_files.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using example::probe_text, example::session;
using support::brute_force, support::mixed_layers, support::named, support::tiny_model;

// What the model predicts behind each token, everything before it recomputed by the definition of attention.
struct recomputed {
  std::vector<int> top;                    // [tokens]
  std::vector<std::vector<double>> log_p;  // [tokens][vocab]
};

void add_predictions(tiny_model& tiny, const std::vector<float>& hidden, recomputed& all) {
  const auto vocab = std::size_t(tiny.model().config().vocab);
  const std::size_t tokens = hidden.size() / std::size_t(tiny.model().config().hidden);
  std::vector<float> logits(tokens * vocab);
  tiny.model().logits(hidden.data(), int(tokens), logits.data());
  for (std::size_t t = 0; t < tokens; ++t) {
    const float* row = &logits[t * vocab];
    double sum = 0;
    for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(double(row[i]));
    all.top.push_back(int(std::max_element(row, row + vocab) - row));
    all.log_p.emplace_back(row, row + vocab);
    for (double& l : all.log_p.back()) l -= std::log(sum);
  }
}

recomputed recompute(tiny_model& tiny, const std::vector<int>& tokens) {
  std::vector<float> hidden;
  tiny.model().forward(tokens, brute_force(tiny.shape(int(tokens.size()))), hidden);
  recomputed all;
  add_predictions(tiny, hidden, all);
  return all;
}

// Answers of 8 tokens behind cues of 2, one of them in two blocks. Of a model of random weights each token is the
// likeliest behind those before it, but for every third one of the answers at a depth of 25.
probe_text answered_by_model(tiny_model& tiny, int filler) {
  probe_text text;
  text.tokens = tiny.some_tokens(filler);
  text.asked_from = filler;
  brute_force attention(tiny.shape(filler + 14 * 10));
  recomputed all;
  while (text.answers.size() < 14) {
    const double depth = text.answers.size() % 3 == 1 ? 75 : 25;
    text.tokens.insert(text.tokens.end(), {3, 5});
    text.answers.push_back({depth, int(text.tokens.size()), 8});
    for (int i = 0; i < 8; ++i) {
      std::vector<float> hidden;
      tiny.model().forward(std::span(text.tokens).subspan(all.top.size()), std::ref(attention), hidden);
      add_predictions(tiny, hidden, all);
      const int top = all.top.back();
      text.tokens.push_back(depth == 25 && i % 3 == 2 ? (top + 1) % tiny.model().config().vocab : top);
    }
  }
  return text;
}

std::string some_text() {
  std::string text;
  for (int i = 0; i < 600; ++i) text += std::to_string(i * 7919 % 1009) + (i % 9 == 0 ? ".\n" : " and ");
  return text;
}

std::vector<int> some_window(const example::tokenizer& words, int positions) {
  std::vector<int> window = words.encode(some_text(), {.add_bos = words.adds_bos()});
  REQUIRE(window.size() >= std::size_t(positions));
  window.resize(std::size_t(positions));
  return window;
}

std::span<const int> part(const std::vector<int>& tokens, int first, int count) {
  return std::span(tokens).subspan(std::size_t(first), std::size_t(count));
}

// ln p of the answers' tokens, on average, and how many are the likeliest.
std::pair<double, int> scored(const probe_text& text, const recomputed& plain) {
  double sum = 0;
  int tokens = 0, right = 0;
  for (const example::probe_answer& a : text.answers)
    for (int t = a.first; t < a.first + a.count; ++t, ++tokens) {
      const int wanted = text.tokens[std::size_t(t)];
      sum += plain.log_p[std::size_t(t - 1)][std::size_t(wanted)];
      right += plain.top[std::size_t(t - 1)] == wanted;
    }
  return {sum / tokens, right};
}

// Predicts token 0 behind the positions that are named for a cache, and token 1 elsewhere.
class scripted_reader final : public example::reader {
 public:
  explicit scripted_reader(std::vector<std::set<int>> zeros) : zeros_(std::move(zeros)) { config_.vocab = 2; }

  const example::model_config& config() const override { return config_; }
  std::size_t caches() const override { return zeros_.size(); }
  example::decoder& cache(std::size_t) override { throw std::logic_error("there are no caches"); }
  void restart() override { end_ = 0; }
  void read(std::span<const int> tokens, const std::function<void()>&) override {
    first_ = end_;
    end_ += int(tokens.size());
  }
  long ticks() const override { return 0; }
  void logits(std::size_t cache, int first, int rows, float* out) override {
    for (int r = 0; r < rows; ++r) {
      const bool zero = zeros_[cache].contains(first_ + first + r);
      *out++ = zero ? 1.0f : 0.0f;
      *out++ = zero ? 0.0f : 1.0f;
    }
  }

 private:
  example::model_config config_;
  std::vector<std::set<int>> zeros_;  // of each cache
  int first_ = 0, end_ = 0;           // the newest block's tokens
};

struct program_result {
  int code;
  std::string words;
};

program_result run_decode_loop(const std::string& arguments) {
  const support::test_folder folder;
  const std::string log = folder / "log";
  const int status = std::system(("'" EXAMPLES_DIR "/decode_loop' " + arguments + " > '" + log + "' 2>&1").c_str());
  std::stringstream words;
  words << std::ifstream(log).rdbuf();
  return {WEXITSTATUS(status), words.str()};
}

std::vector<std::vector<std::string>> csv_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    rows.emplace_back();
    for (std::string cell; std::getline(words, cell, ',');) rows.back().push_back(cell);
  }
  return rows;
}

}  // namespace

TEST_CASE("probe: answers are scored as by recomputing the whole text", "[examples]") {
  tiny_model tiny(GENERATE(false, true) ? mixed_layers() : support::tiny_gguf_options());
  const probe_text text = answered_by_model(tiny, 150);
  const int size = int(text.tokens.size());
  std::vector<std::unique_ptr<session>> caches;
  for (const char* name : {"fp32", "fp16", "window_fp16"}) caches.push_back(tiny.open(named(name), size));
  example::host_reader reader(tiny.model(), kvilt::host(), std::move(caches));
  example::probing probing(reader, kvilt::host());
  long ticks = 0;
  probing.read(text, [&] { ++ticks; });
  CHECK(ticks == probing.ticks(text));

  const recomputed plain = recompute(tiny, text.tokens);
  probe_text deep = text;  // its answers at one depth
  std::erase_if(deep.answers, [](const example::probe_answer& a) { return a.depth == 25; });
  const example::probe_result all = probing.result(0), early = probing.result(0, 25), late = probing.result(0, 75);
  CHECK(all.answers == 14);
  CHECK(all.tokens == 112);
  CHECK(early.answers == 9);
  CHECK(early.tokens == 72);
  CHECK(early.right_tokens == 75);  // two of eight are others
  CHECK(late.right_tokens == 100);
  CHECK(all.right_tokens == Approx(100 * (54 + 40) / 112.0));
  CHECK(early.right_answers == 0);
  CHECK(late.right_answers == 100);
  CHECK(all.right_answers == Approx(100 * 5 / 14.0));
  CHECK(*all.kept == 100);
  CHECK(all.log_probability == Approx(scored(text, plain).first).epsilon(1e-4));
  CHECK(late.log_probability == Approx(scored(deep, plain).first).epsilon(1e-4));
  CHECK(early.log_probability == Approx((112 * all.log_probability - 40 * late.log_probability) / 72));
  // A cache that rounds is close by, and one that has lost most of the text is not.
  CHECK(probing.result(1).log_probability == Approx(all.log_probability).epsilon(0.02));
  CHECK(probing.result(2).log_probability != Approx(all.log_probability).epsilon(1e-3));
  CHECK(probing.result(2, 30).tokens == 0);
}

TEST_CASE("probe: what is kept is of what the first cache has right", "[examples]") {
  // Of five tokens the first cache has 1, 2 and 3 right, the second 3 and 4.
  probe_text text{std::vector<int>(206, 0), 200, {{50, 201, 3}, {50, 204, 2}}};
  scripted_reader reader({{200, 201, 202}, {202, 203}});
  example::probing probing(reader, kvilt::host());
  probing.read(text, [] {});
  CHECK(probing.result(0).right_tokens == Approx(60));
  CHECK(probing.result(0).right_answers == Approx(50));
  CHECK(probing.result(1).right_tokens == Approx(40));
  CHECK(probing.result(1).right_answers == 0);
  CHECK(*probing.result(1).kept == Approx(100 / 3.0));
  scripted_reader lost({{}, {202, 203}});
  example::probing nothing(lost, kvilt::host());
  nothing.read(text, [] {});
  CHECK_FALSE(nothing.result(1).kept.has_value());
}

TEST_CASE("probe: tokens are evicted before they are asked for", "[examples]") {
  tiny_model tiny;
  const probe_text text = answered_by_model(tiny, 250);  // a whole block and a part of one
  const int size = int(text.tokens.size());
  for (const char* name :
       {"window_fp16", "h2o_mean_fp16", "tova_fp16", "snapkv_fp16", "keynorm_fp16", "expected_fp16"}) {
    INFO(name);
    std::vector<std::unique_ptr<session>> caches;
    for (const char* n : {"fp32", name}) caches.push_back(tiny.open(named(n), size));
    example::host_reader reader(tiny.model(), kvilt::host(), std::move(caches));
    example::probing probing(reader, kvilt::host());
    probing.read(text, [] {});

    const auto cache = tiny.open(named(name), size);
    const auto attention = [&](int layer, int, float* q, float* k, const float* v, float* out) {
      cache->attend(kvilt::host(), layer, q, k, v, out);
    };
    recomputed plain;
    for (int first = 0, count; first < size; first += count) {
      count = std::min(128, (first < 250 ? 250 : size) - first);
      std::vector<float> hidden;
      cache->begin(count, 1);
      tiny.model().forward(part(text.tokens, first, count), attention, hidden);
      cache->commit();
      add_predictions(tiny, hidden, plain);
    }
    const auto [log_p, right] = scored(text, plain);
    const example::probe_result whole = probing.result(0), got = probing.result(1);
    CHECK(got.log_probability == Approx(log_p).epsilon(1e-3));
    CHECK(std::abs(got.right_tokens - 100.0 * right / got.tokens) < 100.0 / got.tokens + 1e-9);  // one may be a tie
    CHECK(got.log_probability != Approx(whole.log_probability).epsilon(1e-3));
    CHECK(*got.kept <= 100);
  }
}

TEST_CASE("probe: a passage stands at each depth, and its beginning behind the text", "[examples]") {
  tiny_model tiny({.sentence_piece = GENERATE(false, true)});
  const example::tokenizer words(tiny.file());
  const std::vector<int> window = some_window(words, 500);
  const example::probe_request request{"copy", {0, 50, 100}, 3};
  const probe_text text = example::probe_text_of(request, window, words);
  REQUIRE(text.tokens.size() == 500);
  CHECK(text.asked_from == 500 - 3 * 64);
  REQUIRE(text.answers.size() == 3);
  const int beginning = words.adds_bos() ? 1 : 0, others = 500 - beginning - 6 * 64;
  std::vector<int> rest(text.tokens.begin(), text.tokens.begin() + text.asked_from);
  for (const double depth : {100.0, 50.0, 0.0}) {  // from behind, so that places stay
    const auto a = std::ranges::find(text.answers, depth, &example::probe_answer::depth);
    REQUIRE(a != text.answers.end());
    CHECK(a->count == 48);
    const int at = beginning + int(std::lround(depth / 100 * others)) + 64 * int(depth / 50);
    CHECK(std::ranges::equal(part(text.tokens, a->first - 16, 64), part(text.tokens, at, 64)));
    rest.erase(rest.begin() + at, rest.begin() + at + 64);
  }
  CHECK(std::ranges::equal(rest, part(window, 0, int(rest.size()))));
  CHECK(example::probe_text_of(request, window, words).tokens == text.tokens);
  CHECK(example::probe_text_of({"copy", {0, 50, 100}, 4}, window, words).tokens != text.tokens);
}

TEST_CASE("probe: keys that are asked for are listed once, with the answer", "[examples]") {
  tiny_model tiny({.sentence_piece = GENERATE(false, true)});
  const example::tokenizer words(tiny.file());
  const std::vector<int> window = some_window(words, 500);
  const example::probe_request request{"retrieval", {10, 90}, 1};
  const probe_text text = example::probe_text_of(request, window, words);
  REQUIRE(text.tokens.size() == 500);
  REQUIRE(text.answers.size() == 8);
  const std::string listed = words.decode(part(text.tokens, 0, text.asked_from));
  CHECK(std::count(listed.begin(), listed.end(), ':') == 16);
  std::set<std::string> keys;
  int from = text.asked_from;
  for (const example::probe_answer& a : text.answers) {
    const std::string question = words.decode(part(text.tokens, from, a.first - from));
    const std::string line =
        question.substr(question.find_first_not_of(" \n")) + words.decode(part(text.tokens, a.first, a.count));
    INFO(line);
    CHECK(keys.insert(line.substr(0, 4)).second);
    CHECK(line.size() == 10);
    const std::size_t at = listed.find(line.substr(0, 5));
    REQUIRE(at != std::string::npos);
    CHECK(listed.substr(at, 10) == line);
    CHECK(listed.find(line.substr(0, 5), at + 1) == std::string::npos);
    // The first list is in the text's first half, the second in its last.
    CHECK((at < listed.size() / 2) == (a.depth == 10));
    from = a.first + a.count;
  }
  CHECK(from == 500);
  CHECK(example::probe_text_of(request, window, words).tokens == text.tokens);
  CHECK(example::probe_text_of({"retrieval", {10, 90}, 2}, window, words).tokens != text.tokens);

  // Of many keys some would be the same by chance.
  std::vector<int> wide;
  while (wide.size() < 16000) wide.insert(wide.end(), window.begin(), window.end());
  example::probe_request many{"retrieval", {}, 1};
  for (int depth = 0; depth <= 100; depth += 2) many.depths.push_back(depth);
  const probe_text lists = example::probe_text_of(many, wide, words);
  const std::string all = words.decode(part(lists.tokens, 0, lists.asked_from));
  keys.clear();
  for (std::size_t at = all.find(':'); at != std::string::npos; at = all.find(':', at + 1))
    CHECK(keys.insert(all.substr(at - 4, 4)).second);
  CHECK(keys.size() == 51 * 8);
}

TEST_CASE("probe: every policy is asked", "[examples]") {
  tiny_model tiny({.hidden = 128, .head_dim = 32});
  const example::tokenizer words(tiny.file());
  const probe_text text = example::probe_text_of({"copy", {0, 100}, 1}, some_window(words, 300), words);
  const std::vector<example::policy_entry> policies = example::all_policies();
  std::vector<std::unique_ptr<session>> caches;
  for (const example::policy_entry& p : policies) caches.push_back(tiny.open(p, 300));
  example::host_reader reader(tiny.model(), kvilt::host(), std::move(caches));
  example::probing probing(reader, kvilt::host());
  probing.read(text, [] {});
  for (std::size_t i = 0; i < policies.size(); ++i) {
    INFO(policies[i].name);
    CHECK(reader.cache(i).length() == 300);
    CHECK(probing.result(i).tokens == 96);
    CHECK(probing.result(i, 100).tokens == 48);
    CHECK(std::isfinite(probing.result(i).log_probability));
    CHECK(probing.result(i).log_probability < 0);
  }
}

TEST_CASE("probe: the program asks each policy, the whole text first", "[examples]") {
  tiny_model tiny;
  const example::tokenizer words(tiny.file());
  const support::test_folder folder;
  const std::string file = folder / "text", csv = folder / "csv";
  support::write_file(file, some_text());
  const std::string common = "--model '" + tiny.path() + "' --text '" + file + "' --threads 2 --positions 450 ";
  const program_result ran =
      run_decode_loop(common + "--probe copy --probe retrieval --depths 20,80 --seed 5 --policy fp16 " +
                      "--policy window_fp16 --keep 25 --csv '" + csv + "'");
  INFO(ran.words);
  REQUIRE(ran.code == 0);
  CHECK_THAT(ran.words, support::containing("Probe copy: tokens of 2 answers"));
  CHECK_THAT(ran.words, support::containing("Probe retrieval: tokens of 8 answers"));
  CHECK_THAT(ran.words, support::containing("With all of the text in fp32 the model predicts"));
  const auto rows = csv_of(csv);
  REQUIRE(rows.size() == 1 + 2 * 3 * 3);
  CHECK(rows[0] == std::vector<std::string>{"policy", "k_format", "v_format", "layout", "retention", "sinks16",
                                            "tail16", "bytes_per_token", "cache_bytes", "probe", "depth", "answers",
                                            "tokens", "right_tokens", "right_answers", "kept", "log_probability"});
  const std::array<std::string, 3> policies{"fp32", "fp16", "window_fp16 25%"}, depths{"all", "20", "80"};
  for (std::size_t i = 1; i < rows.size(); ++i) {
    CHECK(rows[i][0] == policies[(i - 1) / 3 % 3]);
    CHECK(rows[i][9] == (i <= 9 ? "copy" : "retrieval"));
    CHECK(rows[i][10] == depths[(i - 1) % 3]);
    CHECK(rows[i][11] == std::to_string((i <= 9 ? 1 : 4) * ((i - 1) % 3 == 0 ? 2 : 1)));
    CHECK(std::stod(rows[i][16]) < 0);
  }
  // The text is the one that its seed makes.
  std::vector<int> window = some_window(words, 450);
  for (const std::size_t i : {1u, 10u}) {
    const probe_text text = example::probe_text_of({rows[i][9], {20, 80}, 5}, window, words);
    CHECK(std::stod(rows[i][16]) == Approx(scored(text, recompute(tiny, text.tokens)).first).epsilon(1e-3));
  }

  const std::vector<std::pair<std::string, std::string>> wrong{
      {"--probe paste", "paste"},
      {"--probe copy --depths 50,20", "--depths 20 does not come after 50"},
      {"--probe copy --depths 120", "--depths 120; percent from 0 to 100 are needed"},
      {"--probe copy --depths deep", "deep"},
      {"--probe retrieval --seed -1", "--seed"},
      {"--probe copy", "--probe copy at 5 depths takes 640 tokens; --positions 450"},
      {"--depths 50", "--probe"},
      {"--seed 2", "--probe"},
      {"--probe copy --decode-at 5", "--decode-at"},
      {"--probe copy --bands 200", "--bands"},
      {"--probe copy --plot a.svg", "--plot"},
      {"--probe copy --generate-only", "--generate-only"},
      {"--probe copy --save a.kv", "--probe has none"},
  };
  for (const auto& [arguments, expected] : wrong) {
    const program_result refused = run_decode_loop(common + arguments);
    INFO(arguments << "\n" << refused.words);
    CHECK(refused.code == 2);
    CHECK(std::count(refused.words.begin(), refused.words.end(), '\n') == 1);
    CHECK_THAT(refused.words, support::containing(expected));
  }
}
