// Replays a request trace through a page manager: what prompts find there, and how full and how fragmented it is.
#include "../decode_loop/gnuplot.hpp"
#include "engine.hpp"
#include "plot.hpp"
#include "report.hpp"
#include "tiers.hpp"
#include "trace.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using example::engine_options;

struct options {
  std::string trace, generate, plot, metrics;
  std::optional<std::int64_t> pages, memory, capacity;
  std::int64_t bytes_per_token = 131'072;
  double step_ms = 10, prefill_us = 50, decode_us = 50;
  engine_options engine;
  bool prompts_only = false, json = false;
  std::vector<std::string> tiers;
};

CLI::Validator range(double least, double most) {
  return CLI::Range(least, most).description("");
}

void declare_time(CLI::App& app, options& o) {
  constexpr double longest = 1e9;
  app.add_option("--step-ms", o.step_ms, "What each step takes")
      ->check(range(1e-3, longest))
      ->type_name("MS")
      ->capture_default_str();
  app.add_option("--prefill-us", o.prefill_us, "And each token of a prompt that it computes")
      ->check(range(0, longest))
      ->type_name("US")
      ->capture_default_str();
  app.add_option("--decode-us", o.decode_us, "And each sequence that says a token")
      ->check(range(0, longest))
      ->type_name("US")
      ->capture_default_str();
}

void declare_engine(CLI::App& app, options& o) {
  constexpr double most = 2e9;
  CLI::Option* pages = app.add_option("--pages", o.pages, "Pages that there are; by default 10,000 x 512 tokens")
                           ->check(range(1, most))
                           ->type_name("N");
  app.add_option("--memory", o.memory, "The same in bytes, or as 80GB, 80GiB")
      ->transform(CLI::AsSizeValue(true).description(""))
      ->type_name("BYTES")
      ->excludes(pages);
  app.add_option("--bytes-per-token", o.bytes_per_token, "With --memory; by default Llama 3 8B in 16 bit")
      ->check(range(1, most))
      ->type_name("BYTES")
      ->capture_default_str();
  app.add_option("--page-tokens", o.engine.page_tokens, "Tokens of a page")
      ->check(range(1, 1 << 20))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--sequences", o.engine.sequences, "Sequences that may be open at one time")
      ->check(range(1, 1 << 24))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--step-tokens", o.engine.step_tokens, "Tokens of prompts that a step computes at most")
      ->check(range(1, most))
      ->type_name("N")
      ->capture_default_str();
}

void declare(CLI::App& app, options& o) {
  CLI::Option* file = app.add_option("TRACE", o.trace, "JSONL: timestamp, input_length, output_length, hash_ids");
  app.add_option("--generate", o.generate, "A made-up trace instead: chat:N[:SEED], N turns of conversations")
      ->type_name("WHAT")
      ->excludes(file);
  app.add_option("--policy", o.engine.policy, "lru, aged_lfu, priority or cost_aware")
      ->type_name("NAME")
      ->capture_default_str();
  declare_engine(app, o);
  declare_time(app, o);
  CLI::Option* alone =
      app.add_flag("--prompts-only", o.prompts_only, "No time, no answers: one prompt after another, in blocks of 512");
  app.add_option("--capacity-blocks", o.capacity, "With --prompts-only, what is kept after each; by default all")
      ->check(range(0, 1e9))
      ->type_name("N")
      ->needs(alone);
  app.add_option("--tier", o.tiers,
                 "Where pages go that leave the pool, host or disk and its size, perhaps what it gives back a second: "
                 "host:64GiB, disk:2TB@7 (GB/s); may be repeated, the nearest first")
      ->type_name("TIER")
      ->excludes(alone)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--json", o.json, "Print the numbers as JSON");
  app.add_option("--metrics", o.metrics, "Write the manager's counters at the end for Prometheus")
      ->type_name("FILE")
      ->excludes(alone);
  app.add_option("--plot", o.plot,
                 "Draw hits against capacity for each policy (gnuplot), as --prompts-only counts them; with tiers, "
                 "what of the prompts each of them had")
      ->type_name("FILE.svg|FILE.png");
  app.footer(
      "Time is simulated: a step takes --step-ms + --prefill-us x tokens of prompts + --decode-us x sequences that "
      "say\n"
      "a token, and nothing for attention's length. A prompt hits what is there when its sequence is first opened.");
}

// Everything that can be wrong is said before anything runs.
example::trace prepare(options& o) {
  if (o.trace.empty() == o.generate.empty())
    throw std::invalid_argument("no trace is given; a file or --generate is needed");
  example::check_policy(o.engine.policy);
  if (!o.plot.empty()) example::check_picture("--plot", o.plot);
  if (!o.metrics.empty() && !std::ofstream(o.metrics, std::ios::app))
    throw std::runtime_error("cannot write " + o.metrics);
  engine_options& e = o.engine;
  e.time = {1e-3 * o.step_ms, 1e-6 * o.prefill_us, 1e-6 * o.decode_us};
  e.pages = o.memory ? *o.memory / (o.bytes_per_token * e.page_tokens) : o.pages.value_or(10'000 * 512 / e.page_tokens);
  example::trace t = o.trace.empty() ? example::generated_trace(o.generate) : example::read_trace(o.trace);
  for (const std::string& text : o.tiers) {
    e.tiers.push_back(example::tier_of(text));
    e.page_bytes = o.bytes_per_token * e.page_tokens;
    if (e.tiers.back().bytes < e.page_bytes)
      throw std::invalid_argument("--tier " + text + " is smaller than a page of " + std::to_string(e.page_bytes) +
                                  " bytes");
  }
  if (o.prompts_only) return t;
  constexpr std::int64_t most_pages = 1 << 27;  // which take 16 GB here
  if (e.pages > most_pages)
    throw std::invalid_argument(std::to_string(e.pages) + " pages; " + std::to_string(most_pages) + " at most");
  example::check_budget(t, e);
  return t;
}

void replay(options& o) {
  const example::trace t = prepare(o);
  const example::outcome result = o.prompts_only ? example::replay_prompts(t, o.engine.policy, o.capacity.value_or(-1))
                                                 : example::simulate(t, o.engine);
  if (!o.metrics.empty()) std::ofstream(o.metrics) << example::metrics_text(result.counters);
  if (!o.plot.empty() && o.tiers.empty()) example::plot_hit_rates(t, o.plot);
  if (!o.plot.empty() && !o.tiers.empty()) example::plot_tiers(result, o.plot);
  std::puts((o.json ? example::outcome_json(result, !o.prompts_only) : example::outcome_table(result, !o.prompts_only))
                .c_str());
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int wrong_use = 2;
  try {
    options o;
    CLI::App app("Replays a request trace through a page manager.", "replay");
    declare(app, o);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
      if (e.get_exit_code() == 0) return app.exit(e);
      throw;
    }
    replay(o);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "replay: %s\n", e.what());
    return wrong_use;
  }
}
