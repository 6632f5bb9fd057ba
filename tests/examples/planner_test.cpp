#include "support/catch.hpp"
#include "support/tiny_gguf.hpp"

#if __has_include(<nlohmann/json.hpp>)

#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

// The planner as its users meet it: the program is run, and its words are read.
namespace {

using nlohmann::json;

constexpr std::int64_t mib = 1 << 20;

struct answer {
  int status;
  std::string text;  // of both streams
};

answer ask(const std::string& arguments) {
  if (!std::filesystem::exists(EXAMPLES_DIR "/planner")) support::skip("the planner was not built");
  std::FILE* pipe = popen(("'" EXAMPLES_DIR "/planner' " + arguments + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  answer a{};
  std::array<char, 4096> block{};
  while (const std::size_t count = std::fread(block.data(), 1, block.size(), pipe)) a.text.append(block.data(), count);
  const int status = pclose(pipe);
  a.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return a;
}

json plan(const std::string& arguments) {
  const answer a = ask(arguments + " --json");
  INFO(arguments << "\n" << a.text);
  REQUIRE(a.status == 0);
  return json::parse(a.text);
}

class scratch_model {
 public:
  explicit scratch_model(const support::gguf_builder& file) : path_(support::temporary_path("planner.gguf")) {
    file.write(path_);
  }
  ~scratch_model() { std::filesystem::remove(path_); }
  scratch_model(const scratch_model&) = delete;
  scratch_model& operator=(const scratch_model&) = delete;
  std::string option() const { return "--model '" + path_ + "'"; }
  std::int64_t bytes() const { return std::int64_t(std::filesystem::file_size(path_)); }

 private:
  std::string path_;
};

}  // namespace

// 2 (K and V) x layers x tokens x KV heads x head dim x 2 bytes
TEST_CASE("planner: the textbook's figures", "[examples]") {
  const json llama2 = plan("--preset llama-2-7b --tokens 1024");
  CHECK(llama2["bytes_per_token"] == 2 * 32 * 32 * 128 * 2);
  CHECK(llama2["bytes_per_sequence"] == 512 * mib);
  CHECK(llama2["sequences"].is_null());
  CHECK(llama2["tokens"].is_null());
  const json llama3 = plan("--preset llama-3-8b --tokens 4096");
  CHECK(llama3["bytes_per_token"] == 2 * 32 * 8 * 128 * 2);
  CHECK(llama3["bytes_per_sequence"] == 512 * mib);
  CHECK(plan("--preset llama-3-70b --tokens 4096")["bytes_per_sequence"] == 1280 * mib);
  CHECK(plan("--preset qwen2-72b --tokens 4096")["bytes_per_sequence"] == 1280 * mib);
  CHECK(plan("--preset smollm2-135m --tokens 2048")["bytes_per_sequence"] == 45 * mib);
  // 8-bit codes and a 16-bit scale for each row of 128
  CHECK(plan("--preset llama-3-8b --tokens 4096 --policy int8")["bytes_per_sequence"] == 2 * 32 * 8 * 130 * 4096);
}

TEST_CASE("planner: KV heads may be other than the model's", "[examples]") {
  for (const int heads : {32, 8, 1}) {
    const json p = plan("--preset llama-3-8b --tokens 8192 --kv-heads " + std::to_string(heads));
    CHECK(p["groups"][0]["kv_heads"] == heads);
    CHECK(p["bytes_per_sequence"] == std::int64_t{2} * 32 * heads * 128 * 2 * 8192);
  }
  CHECK(plan("--preset gemma-3-27b --kv-heads 2")["groups"][1]["kv_heads"] == 2);
}

TEST_CASE("planner: sequences that fit are what the weights leave, by the bytes of one", "[examples]") {
  const json by_preset = plan("--preset llama-3-8b --tokens 4096 --memory 80GiB");
  CHECK(by_preset["sequences"] == 130);  // 85,899,345,920 - 2 x 8,030,261,248 is 130.08 x 512 MiB
  CHECK(by_preset["tokens"] == 532'827);
  const json exactly = plan("--preset llama-2-7b --tokens 1024 --memory 15GiB --weights 5GiB");
  CHECK(exactly["sequences"] == 20);
  CHECK(exactly["tokens"] == 20 * 1024);
  const json one_byte_less = plan("--preset llama-2-7b --tokens 1024 --memory 16106127359 --weights 5368709120");
  CHECK(one_byte_less["sequences"] == 19);
  CHECK(one_byte_less["tokens"] == 20 * 1024 - 1);
  CHECK(plan("--preset llama-2-7b --memory 1GB")["sequences"] == 0);
  CHECK(plan("--preset llama-2-7b --memory 80GB")["sequences"] <
        plan("--preset llama-2-7b --memory 80GiB")["sequences"]);
}

TEST_CASE("planner: Gemma 2 keeps 4,096 tokens in every other layer", "[examples]") {
  const std::int64_t row = 23 * 2 * 16 * 128 * 2;  // of a token in 23 layers
  const json p = plan("--preset gemma-2-27b --tokens 8192");
  REQUIRE(p["groups"].size() == 2);
  const json global = p["groups"][0], local = p["groups"][1];
  CHECK(global == json{{"name", "global"},
                       {"layers", 23},
                       {"kv_heads", 16},
                       {"head_dim", 128},
                       {"window", 0},
                       {"bytes_per_token", row},
                       {"bytes_per_sequence", row * 8192}});
  CHECK(local == json{{"name", "local"},
                      {"layers", 23},
                      {"kv_heads", 16},
                      {"head_dim", 128},
                      {"window", 4096},
                      {"bytes_per_token", row},
                      {"bytes_per_sequence", row * 4096}});
  CHECK(p["bytes_per_token"] == 2 * row);
  CHECK(p["bytes_per_sequence"] == row * (8192 + 4096));
  // Pages of 16: one more than the window fills, since it starts inside one.
  const json paged = plan("--preset gemma-2-27b --tokens 8192 --policy paged16_fp16");
  CHECK(paged["groups"][1]["bytes_per_sequence"] == row * (4096 + 16));
  // No window is as long as the text.
  CHECK(plan("--preset gemma-2-27b --tokens 1024")["bytes_per_sequence"] == 2 * row * 1024);
}

TEST_CASE("planner: Gemma 3 keeps 1,024 tokens in five layers of six", "[examples]") {
  const std::int64_t row = 2 * 16 * 128 * 2;
  const json p = plan("--preset gemma-3-27b --tokens 32768");
  REQUIRE(p["groups"].size() == 2);
  CHECK(p["groups"][0]["layers"] == 10);
  CHECK(p["groups"][0]["bytes_per_sequence"] == 10 * row * 32768);
  CHECK(p["groups"][1]["layers"] == 52);
  CHECK(p["groups"][1]["window"] == 1024);
  CHECK(p["groups"][1]["bytes_per_sequence"] == 52 * row * 1024);
  CHECK(p["bytes_per_sequence"] == row * (10 * 32768 + 52 * 1024));
  // The newest 64 tokens in 16 bit and one more that is leaving, 1,024 - 63 in the body's pages of int8; global layers also have 4 sinks.
  const json guarded = plan("--preset gemma-3-27b --tokens 32768 --policy paged16_int8_rot_s4_t64");
  const std::int64_t int8_row = 2 * 16 * 130;
  CHECK(guarded["groups"][1]["bytes_per_token"] == 52 * int8_row);
  CHECK(guarded["groups"][0]["bytes_per_sequence"] == 10 * (int8_row * 32704 + row * 69));
}

TEST_CASE("planner: a window is the shorter of the model's and the policy's", "[examples]") {
  const std::int64_t row = 32 * 2 * 8 * 128 * 2;
  CHECK(plan("--preset mistral-7b --tokens 8192")["bytes_per_sequence"] == row * 4096);
  const json ring = plan("--preset mistral-7b --tokens 8192 --policy ring256_s4_fp16");
  CHECK(ring["groups"][0]["window"] == 256);
  CHECK(ring["bytes_per_sequence"] == row * 260);
}

TEST_CASE("planner: the bytes of a cache for several sequences contain its page tables", "[examples]") {
  const json p = plan("--preset smollm2-135m --tokens 100 --policy paged16_fp16 --sequences 3");
  const std::int64_t pages = 3 * 7, page = 2 * 16 * 3 * 64 * 2;
  CHECK(p["bytes_per_sequence"] == 30 * 7 * page);
  CHECK(p["cache_bytes"] == 30 * pages * page + pages * 4);
}

TEST_CASE("planner: a model file states its shape", "[examples]") {
  const scratch_model plain(support::tiny_gguf({.layers = 3, .kv_heads = 2, .head_dim = 16}));
  const std::int64_t row = 3 * 2 * 2 * 16 * 2;
  const json p = plan(plain.option() + " --tokens 64 --memory " + std::to_string(plain.bytes() + 10 * 64 * row));
  CHECK(p["bytes_per_token"] == row);
  CHECK(p["sequences"] == 10);

  const scratch_model sliding(support::tiny_gguf().u32("llama.attention.sliding_window", 24));
  const json local = plan(sliding.option() + " --tokens 64");
  REQUIRE(local["groups"].size() == 1);
  CHECK(local["groups"][0]["name"] == "local");
  CHECK(local["groups"][0]["window"] == 24);

  const scratch_model mixed(support::tiny_gguf({.layers = 7})
                                .u32("llama.attention.sliding_window", 24)
                                .u32("llama.attention.sliding_window_pattern", 3));
  const json both = plan(mixed.option());
  REQUIRE(both["groups"].size() == 2);
  CHECK(both["groups"][0]["layers"] == 2);
  CHECK(both["groups"][1]["layers"] == 5);
}

TEST_CASE("planner: every policy and preset that it lists can be planned", "[examples]") {
  const answer listed = ask("--list");
  REQUIRE(listed.status == 0);
  std::string_view rest = listed.text;
  const auto presets_at = rest.find("presets:\n");
  REQUIRE(presets_at != std::string_view::npos);
  int count = 0;
  for (std::size_t at = rest.find("\n  "); at != std::string_view::npos; at = rest.find("\n  ", at + 1), ++count) {
    const std::string name(rest.substr(at + 3, rest.find('\n', at + 1) - at - 3));
    CHECK(plan((at < presets_at ? "--preset gemma-3-27b --policy " : "--preset ") + name)["bytes_per_sequence"] > 0);
  }
  CHECK(count >= 16 + 8);
  CHECK(ask("--preset gemma-3-27b --memory 80GiB --sequences 2").status == 0);
}

TEST_CASE("planner: what cannot be answered is one line and exit code 2", "[examples]") {
  const std::array<std::array<std::string, 2>, 15> wrong{{
      {"", "--model or --preset is needed"},
      {"--preset llama-9", "llama-9"},
      {"--preset llama-2-7b --policy int9", "int9"},
      {"--preset llama-2-7b --tokens 0", "--tokens"},
      {"--preset llama-2-7b --tokens many", "--tokens"},
      {"--preset llama-2-7b --tokens 3000000000", "--tokens"},
      {"--preset llama-2-7b --memory 80QB", "--memory"},
      {"--preset llama-2-7b --memory -1", "--memory"},
      {"--preset llama-2-7b --memory 99999999999GiB", "--memory"},
      {"--preset llama-2-7b --weights heavy", "--weights"},
      {"--preset llama-2-7b --sequences 0", "--sequences"},
      {"--preset llama-2-7b --kv-heads 0", "--kv-heads"},
      {"--preset llama-2-7b --model a.gguf", "--preset"},
      {"--model /nowhere/a.gguf", "/nowhere/a.gguf"},
      {"--frobnicate", "--frobnicate"},
  }};
  for (const auto& [arguments, named] : wrong) {
    const answer a = ask(arguments);
    INFO(arguments << "\n" << a.text);
    CHECK(a.status == 2);
    CHECK(a.text.find(named) != std::string::npos);
    CHECK(a.text.find('\n') == a.text.size() - 1);
  }
  const scratch_model headless(support::tiny_gguf({.head_dim = 12}));
  CHECK(ask(headless.option()).status == 2);
}

#endif
