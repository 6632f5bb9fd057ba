#include "support/catch.hpp"
#include "support/tiny_gguf.hpp"

#if __has_include(<nlohmann/json.hpp>)

#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

// The program is run on traces that are made up, and its numbers are compared with those found by hand or by counting.
namespace {

using nlohmann::json;
using ids = std::vector<int>;

struct answer {
  int status;
  std::string text;  // of both streams
};

answer ask(const std::string& arguments) {
  if (!std::filesystem::exists(EXAMPLES_DIR "/replay")) support::skip("replay was not built");
  std::FILE* pipe = popen(("'" EXAMPLES_DIR "/replay' " + arguments + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  answer a{};
  std::array<char, 4096> block{};
  while (const std::size_t count = std::fread(block.data(), 1, block.size(), pipe)) a.text.append(block.data(), count);
  const int status = pclose(pipe);
  a.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return a;
}

json result(const std::string& arguments) {
  const answer a = ask(arguments + " --json");
  INFO(arguments << "\n" << a.text);
  REQUIRE(a.status == 0);
  return json::parse(a.text);
}

void refused(const std::string& arguments, const std::string& words) {
  const answer a = ask(arguments);
  INFO(arguments << "\n" << a.text);
  CHECK(a.status == 2);
  CHECK(std::count(a.text.begin(), a.text.end(), '\n') == 1);
  CHECK(a.text.find(words) != std::string::npos);
}

class scratch_file {
 public:
  explicit scratch_file(const std::string& text = {}, const std::string& name = "replay.jsonl")
      : path_(support::temporary_path(std::to_string(files++) + name)) {
    std::ofstream(path_) << text;
  }
  ~scratch_file() { std::filesystem::remove(path_); }
  scratch_file(const scratch_file&) = delete;
  scratch_file& operator=(const scratch_file&) = delete;
  std::string name() const { return "'" + path_ + "'"; }
  std::string text() const {
    std::ifstream in(path_);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  static inline int files = 0;
  std::string path_;
};

std::string line(int ms, int input, int output, const ids& blocks) {
  return json{{"timestamp", ms}, {"input_length", input}, {"output_length", output}, {"hash_ids", blocks}}.dump() +
         '\n';
}

bool near(const json& value, double expected) {
  return std::abs(value.get<double>() - expected) <= 1e-9 * expected;
}

// Time goes in whole seconds.
const std::string a_step_a_second = " --step-ms 1000 --prefill-us 0 --decode-us 0 ";

// Requests that go on from each other's blocks, as they would in conversations.
std::vector<ids> random_prompts(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<ids> prompts;
  for (int next = 0; prompts.size() < 300;) {
    ids p;
    if (!prompts.empty() && random() % 3 != 0) {
      const ids& other = prompts[random() % prompts.size()];
      p.assign(other.begin(), other.begin() + std::ptrdiff_t(random() % (other.size() + 1)));
    }
    for (auto more = 1 + random() % 4; more > 0; --more) p.push_back(next++);
    prompts.push_back(p);
  }
  return prompts;
}

struct hits {
  int asked = 0, hit = 0;
};

// What a list of prefixes finds that forgets the one used longest ago, of one request's the longest first.
hits lru_hits(const std::vector<ids>& prompts, std::size_t capacity) {
  hits h;
  std::vector<ids> kept;
  for (const ids& p : prompts) {
    std::vector<ids> prefixes;
    for (std::size_t n = p.size(); n > 0; --n) prefixes.emplace_back(p.begin(), p.begin() + std::ptrdiff_t(n));
    h.asked += int(p.size());
    for (const ids& prefix : prefixes) h.hit += int(std::erase(kept, prefix));
    kept.insert(kept.end(), prefixes.begin(), prefixes.end());
    if (kept.size() > capacity) kept.erase(kept.begin(), kept.end() - std::ptrdiff_t(capacity));
  }
  return h;
}

}  // namespace

TEST_CASE("replay: prompts alone hit what a list of prefixes has", "[examples]") {
  const std::vector<ids> prompts = random_prompts(7);
  std::string text;
  for (const ids& p : prompts) text += line(0, int(p.size()) * 512 - 100, 1, p);
  const scratch_file trace(text);
  for (const int capacity : {0, 1, 7, 40, 150, 100'000}) {
    INFO("capacity " << capacity);
    const hits h = lru_hits(prompts, std::size_t(capacity));
    const json r = result(trace.name() + " --prompts-only --policy lru --capacity-blocks " + std::to_string(capacity));
    CHECK(near(r["block_hit_rate"], double(h.hit) / h.asked));
    CHECK(r["requests"] == 300);
    CHECK(r["utilisation"].is_null());
  }
  const hits all = lru_hits(prompts, 100'000);
  for (const char* policy : {"lru", "aged_lfu", "priority", "cost_aware"})
    CHECK(near(result(trace.name() + " --prompts-only --policy " + policy)["block_hit_rate"],
               double(all.hit) / all.asked));
}

TEST_CASE("replay: tokens of blocks that hit are counted to the prompt's end", "[examples]") {
  const scratch_file trace(line(0, 700, 1, {4, 5}) + line(0, 700, 1, {4, 5}) + line(0, 512, 1, {4}));
  const json r = result(trace.name() + " --prompts-only");
  CHECK(near(r["token_hit_rate"], 1212.0 / 1912));
  CHECK(near(r["block_hit_rate"], 3.0 / 5));
}

// 1,024 tokens asked for twice: all but the last, 63 pages and 15 rows of another, which are copied.
TEST_CASE("replay: a prompt finds what one before it has, also while that one runs", "[examples]") {
  for (const int second : {60'000, 1}) {
    INFO("the second comes after " << second << " ms");
    const scratch_file trace(line(0, 1024, 3, {0, 1}) + line(second, 1024, 3, {0, 1}));
    const json r = result(trace.name() + a_step_a_second);
    CHECK(near(r["token_hit_rate"], 1023.0 / 2048));
    CHECK(near(r["block_hit_rate"], 63.0 / 128));
    CHECK(r["page_moves"] == 1);
    CHECK(r["requests"] == 2);
  }
}

TEST_CASE("replay: means are over time, and time passes while nobody runs", "[examples]") {
  // A step of 10 s, then 30 s of nothing, then a step of 10 s + 16 tokens of 1 s each: a page of four.
  const scratch_file trace(line(5'000, 16, 1, {0}) + line(45'000, 12, 1, {1}));
  const json r = result(trace.name() + " --pages 4 --step-ms 10000 --prefill-us 0 --decode-us 0");
  CHECK(near(r["utilisation"], 20.0 / (4 * 50)));
  CHECK(near(r["fragmentation"], 4.0 / 32));
  // Steps of 1 + 16 x 2 and 1 + 12 x 2 seconds, and 7 between them.
  const json slow = result(trace.name() + " --pages 4 --step-ms 1000 --prefill-us 2e6 --decode-us 0");
  CHECK(near(slow["utilisation"], 58.0 / (4 * 65)));
  CHECK(near(slow["fragmentation"], 25.0 * 4 / (58 * 16)));
}

// Two sequences grow to three pages each, and there are four. Step 1: a page each; 2 to 17: two each; then the second
// one gives way, and its second page is evicted. 18 to 33: the first has three; 34 to 49: the second, which computes 17
// tokens again in step 34.
TEST_CASE("replay: who was opened last gives way, and goes on later", "[examples]") {
  const scratch_file trace(line(0, 16, 33, {0}) + line(0, 16, 33, {1}));
  const json r = result(trace.name() + " --pages 4" + a_step_a_second);
  CHECK(r["requests"] == 2);
  CHECK(r["preemptions"] == 1);
  CHECK(r["token_hit_rate"] == 0);  // what it finds of itself is no hit
  CHECK(r["page_moves"] == 0);
  CHECK(near(r["utilisation"], (2 + 16 * 4 + 16 * 3 + 16 * 3) / (4.0 * 49)));
  CHECK(near(r["fragmentation"], 480.0 / (16 * (2 + 16 * 4 + 32 * 3))));
  CHECK(ask(trace.name() + " --pages 4" + a_step_a_second).text.find("49.000 s") != std::string::npos);
}

TEST_CASE("replay: nobody is admitted without pages for who runs", "[examples]") {
  const scratch_file trace(line(0, 16, 2, {0}) + line(0, 16, 2, {1}));
  const json r = result(trace.name() + " --pages 2" + a_step_a_second);
  CHECK(r["preemptions"] == 0);
  CHECK(r["requests"] == 2);
}

TEST_CASE("replay: a memory is as many pages as it has bytes for", "[examples]") {
  const scratch_file trace(line(0, 64, 1, {0}));
  const std::string budget = trace.name() + " --page-tokens 16 --bytes-per-token 10 --memory ";
  CHECK(result(budget + "640")["utilisation"] == 1);
  refused(budget + "639", "needs 4 pages of 16; the budget is 3");
}

TEST_CASE("replay: a generated trace is that of its seed, and every request ends", "[examples]") {
  const std::string chat = "--generate chat:400:3 --pages 700 ";
  const json once = result(chat);
  CHECK(once == result(chat));
  CHECK(once != result("--generate chat:400:4 --pages 700"));
  CHECK(once["block_hit_rate"] > 0.1);
  for (const char* policy : {"lru", "aged_lfu", "priority", "cost_aware"})
    for (const int page_tokens : {16, 7}) {
      const long budget = page_tokens == 16 ? 700 : 1'000;
      const std::string rest = "--page-tokens " + std::to_string(page_tokens) + " --pages " + std::to_string(budget) +
                               (page_tokens == 16 ? "" : " --step-tokens 100 --decode-us 20000");
      INFO(policy << ' ' << rest);
      const scratch_file metrics;
      const json r =
          result("--generate chat:400:3 --policy " + std::string(policy) + " --metrics " + metrics.name() + ' ' + rest);
      CHECK(r["requests"] == 400);
      std::istringstream text(metrics.text());
      std::map<std::string, long> samples;
      for (std::string s; std::getline(text, s);)
        if (s[0] != '#') samples[s.substr(0, s.rfind(' '))] = std::stol(s.substr(s.rfind(' ') + 1));
      CHECK(samples.at("kvilt_sequences_open") == 0);
      CHECK(samples.at("kvilt_tokens") == 0);
      CHECK(samples.at("kvilt_sequences_ended_total{how=\"closed\"}") == 400);
      CHECK(samples.at("kvilt_sequences_opened_total") == 400 + r["preemptions"].get<long>());
      CHECK(samples.at("kvilt_page_moves_total") == r["page_moves"].get<long>());
      const std::string pages = "kvilt_pages{group=\"0\",state=\"";
      CHECK(samples.at(pages + "used\"}") == 0);
      CHECK(samples.at(pages + "free\"}") + samples.at(pages + "cached\"}") == budget);
      CHECK((page_tokens == 16 || r["preemptions"] > 10));
    }
}

TEST_CASE("replay: the picture has a line for each policy", "[examples]") {
  if (std::system("command -v gnuplot > /dev/null 2>&1") != 0) support::skip("gnuplot is not installed");
  const scratch_file picture({}, "replay.svg");
  CHECK(ask("--generate chat:60 --json --plot " + picture.name()).status == 0);
  const std::string svg = picture.text();
  for (const char* name : {"unbounded", "lru", "aged_lfu", "priority", "cost_aware", "capacity, blocks"})
    CHECK(svg.find(name) != std::string::npos);
}

TEST_CASE("replay: JSON has these keys", "[examples]") {
  for (const char* how : {"", " --prompts-only"}) {
    const json r = result(std::string("--generate chat:20") + how);
    std::set<std::string> keys;
    for (const auto& [key, value] : r.items()) keys.insert(key);
    CHECK(keys == std::set<std::string>{"block_hit_rate", "token_hit_rate", "requests", "utilisation", "fragmentation",
                                        "preemptions", "page_moves"});
  }
}

TEST_CASE("replay: what cannot be is one line", "[examples]") {
  const scratch_file good(line(0, 600, 20, {0, 1}));
  refused("", "no trace is given");
  refused("--generate chat:5 " + good.name(), "excludes");
  refused("no_such_file", "cannot read no_such_file");
  refused(good.name() + " --policy mru", "policy 'mru'; there are lru, aged_lfu");
  refused(good.name() + " --pages 38", "600 tokens and 20 more needs 39 pages of 16; the budget is 38");
  refused(good.name() + " --capacity-blocks 5", "prompts-only");
  refused(good.name() + " --metrics /no/such/file", "cannot write");
  refused(good.name() + " --plot picture.pdf", ".svg");
  for (const char* what : {"chat:", "chat:0", "chat:-4", "chat:5:x", "code:5", "chat"})
    refused("--generate " + std::string(what), "chat:");
  CHECK(result(good.name() + " --pages 39")["requests"] == 1);
}

TEST_CASE("replay: a wrong line of a trace is named", "[examples]") {
  const auto refused_line = [](const std::string& text, const std::string& words) {
    const scratch_file trace(line(0, 600, 20, {0, 1}) + text);
    refused(trace.name(), ":2: " + words);
    refused(trace.name() + " --prompts-only", ":2: " + words);
  };
  refused_line("hello\n", "not a JSON object");
  refused_line("[1, 2]\n", "not a JSON object");
  refused_line("{\"timestamp\": 0}\n", "no number input_length");
  refused_line(line(0, -5, 20, {}), "input_length is -5");
  refused_line(line(0, 0, 20, {}), "input_length is 0");
  refused_line(line(0, 5, -1, {0}), "output_length is -1");
  refused_line(line(-1, 5, 1, {0}), "timestamp is -1");
  refused_line(line(0, 513, 1, {0}), "1 hash_ids; 513 tokens have 2");
  refused_line(line(0, 5, 1, {-3}), "hash id -3");
  refused_line("{\"timestamp\": 0, \"input_length\": 1.5, \"output_length\": 1, \"hash_ids\": [0]}",
               "input_length is 1.5");
  const scratch_file empty("\n\n");
  refused(empty.name(), "no requests");
}

TEST_CASE("replay: what left the pool comes back from the tiers, and takes its time", "[examples]") {
  // One text, another in its place, and the first again: 320 pages of 16 tokens each, where there are 330.
  const ids first = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, second = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19};
  const scratch_file trace(line(0, 5120, 1, first) + line(100'000, 5120, 1, second) + line(200'000, 5120, 1, first));
  const std::string common = trace.name() + " --pages 330 --policy lru";
  CHECK(near(result(common)["token_hit_rate"], 160.0 / 15360));  // the 10 pages that stayed
  const json whole = result(common + " --tier host:100GB");
  CHECK(near(whole["token_hit_rate"], 5104.0 / 15360));  // all full pages but that of the last token
  CHECK(near(whole["tiers"][0]["token_hit_rate"], (5104.0 - 160) / 15360));
  CHECK(near(whole["tiers"][0]["saved_seconds"], (5104 - 160) * 50e-6));
  // Of what goes first, the end of a text, a small tier loses most, unless another is behind it.
  const json small = result(common + " --tier host:100MiB");
  CHECK(small["tiers"][0]["pages"] == 50);
  CHECK(near(small["token_hit_rate"], (10 + 50) * 16.0 / 15360));
  const json both = result(common + " --tier host:100MiB --tier disk:100GB");
  CHECK(near(both["token_hit_rate"], 5104.0 / 15360));
  CHECK(both["tiers"][1]["loaded"].get<int>() + both["tiers"][0]["loaded"].get<int>() == 309);

  const auto first_token = [&](const std::string& tier) {
    const answer a = ask(common + " --tier " + tier);
    const std::size_t at = a.text.find("first token after, mean");
    REQUIRE(at != std::string::npos);
    return std::stod(a.text.substr(at + 23));
  };
  // 309 pages of 2 MiB at 0.1 GB/s: 6.48 s, for one of three requests.
  CHECK(std::abs(first_token("disk:100GB@0.1") - first_token("disk:100GB@1000") - 6.48 / 3) < 0.01);
  refused(common + " --tier host:1MB", "is smaller than a page of 2097152 bytes");
  refused(common + " --tier tape:1GB", "host:SIZE or disk:SIZE");
  refused(common + " --tier host:1", "a size in none of MB");
  refused(common + " --tier host:1GB@2x", "goes on behind its GB/s");
}

#endif
