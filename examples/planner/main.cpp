// Tells what a KV cache of a model takes, before any is made: by layer group, and how much of it a memory holds.
#include "../decode_loop/policies.hpp"
#include "model_error.hpp"
#include "model_shape.hpp"
#include "plan.hpp"
#include "report.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace {

using example::plan_request;

struct options {
  std::string model, preset;
  plan_request plan;
  std::optional<std::int64_t> weights;
  std::optional<int> kv_heads;
  bool json = false, list = false;
};

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

void declare(CLI::App& app, options& o) {
  constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max(), longest = (std::int64_t{1} << 31) - 1;
  const CLI::Validator size = CLI::AsSizeValue(true).description("");
  CLI::Option* model =
      app.add_option("--model", o.model, "Take the model's shape from this GGUF file")->type_name("FILE.gguf");
  app.add_option("--preset", o.preset, "Take the shape of a known model: " + joined(example::preset_names()))
      ->type_name("NAME")
      ->excludes(model);
  app.add_option("--kv-heads", o.kv_heads, "Plan for this many KV heads a layer instead of the model's")
      ->check(CLI::Range(1, 1 << 20).description(""))
      ->type_name("N");
  app.add_option("--policy", o.plan.policy, "How the cache keeps K and V; --list names all")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--tokens", o.plan.tokens, "Length of a sequence")
      ->check(CLI::Range(std::int64_t{1}, longest).description(""))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--memory", o.plan.memory, "Memory for weights and caches, in bytes or as 80GB, 80GiB")
      ->transform(size)
      ->check(CLI::Range(std::int64_t{0}, largest).description(""))
      ->type_name("BYTES");
  app.add_option("--weights", o.weights, "Memory that the weights take; by default 16 bit for each or the file's size")
      ->transform(size)
      ->check(CLI::Range(std::int64_t{0}, largest).description(""))
      ->type_name("BYTES");
  app.add_option("--sequences", o.plan.sequences, "Tell also what a cache for N such sequences allocates")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()).description(""))
      ->type_name("N");
  app.add_flag("--json", o.json, "Print the numbers as JSON");
  app.add_flag("--list", o.list, "Name the policies and presets");
  app.footer(
      "Windows and tails are planned for steps of one token, as in decoding. A row's bytes_per_token is what a\n"
      "token takes while it is kept, bytes_per_sequence what a sequence takes that has grown to its length.");
}

void print_names() {
  std::puts("policies:");
  for (const example::policy_entry& policy : example::all_policies()) std::printf("  %s\n", policy.name.c_str());
  std::puts("presets:");
  for (const std::string& name : example::preset_names()) std::printf("  %s\n", name.c_str());
}

void plan(options& o) {
  if (o.model.empty() && o.preset.empty())
    throw example::model_error("no model is given; --model or --preset is needed");
  example::model_shape shape = o.model.empty() ? example::preset_shape(o.preset) : example::read_model_shape(o.model);
  for (example::layer_group& group : shape.groups) group.kv_heads = o.kv_heads.value_or(group.kv_heads);
  o.plan.weights = o.weights.value_or(shape.weight_bytes);
  const example::model_plan result = example::plan_model(shape, o.plan);
  std::puts((o.json ? example::plan_json(shape, result) : example::plan_table(shape, o.plan, result)).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int wrong_use = 2;
  try {
    options o;
    CLI::App app("What a KV cache takes, and how much of it fits.", "planner");
    declare(app, o);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
      if (e.get_exit_code() == 0) return app.exit(e);
      throw;
    }
    if (o.list)
      print_names();
    else
      plan(o);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "planner: %s\n", e.what());
    return wrong_use;
  }
}
