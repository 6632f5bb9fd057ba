// A real model decodes through each cache policy: it answers a prompt, then reads a text with every cache, and a table
// says what each one costs and saves.
#include "bands.hpp"
#include "calibrate.hpp"
#include "cuda/cuda_backend.hpp"
#include "evaluate.hpp"
#include "evict_policies.hpp"
#include "generate.hpp"
#include "gnuplot.hpp"
#include "host_backend.hpp"
#include "options.hpp"
#include "plot.hpp"
#include "policies.hpp"
#include "probe.hpp"
#include "probe_report.hpp"
#include "probe_text.hpp"
#include "progress.hpp"
#include "prompt_file.hpp"
#include "report.hpp"
#include "sharing.hpp"
#include "timing.hpp"

#include <kvilt/core/thread_pool.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace example {
namespace {

constexpr const char* default_answer_policy = "paged16_int8_rot_s4_t64";
constexpr const char* default_sharing_policy = "paged16_int8";
constexpr int prompt_step = 64;    // tokens of the prompt that a step appends
constexpr int reading_step = 256;  // and of a text that is read for what comes behind it
constexpr int usage_error = 2;

void add_options(CLI::App& app, options& o) {
  app.add_option("--model", o.model, "GGUF file of architecture llama or gemma3")->type_name("FILE");
  CLI::Option* prompt =
      app.add_option("--prompt", o.prompts, "What the model is asked first; may be repeated: all in one cache")
          ->expected(1)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
          ->capture_default_str();
  app.add_option("--shared-prefix", o.shared_prefix,
                 "What the model is told before each prompt, and computes once: a text, or @ and a file's name")
      ->type_name("TEXT");
  app.add_option("--fork", o.fork, "Continue the prompt, computed once, in so many ways")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--tokens", o.tokens, "Most tokens of the answer")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--text", o.text, "Plain text that the policies are evaluated on")->type_name("FILE");
  app.add_option("--calibration", o.calibration,
                 "Plain text that static scales are taken from (default: what follows in --text)")
      ->type_name("FILE");
  app.add_option("--positions", o.positions, "Tokens of a window of the text")
      ->check(CLI::Range(evaluation::first_scored + 2, 1 << 24))
      ->capture_default_str();
  app.add_option("--windows", o.windows, "How many windows of the text, one after the other, are read")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--policy", o.policies, "A policy to evaluate, by name; may be repeated (default: see --list)")
      ->type_name("NAME")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--keep", o.keep,
                 "Percent of the tokens that stay where a policy evicts the others: one cache for each")
      ->type_name("P,P,...")
      ->delimiter(',')
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str();
  app.add_option("--device", o.device, "Where the model and the caches are: cpu, or cuda for a GPU")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_flag("--integer-weights", o.integer_weights,
               "Decode with the file's weights as integers and activations in 8 bit; the evaluation stays in fp32");
  CLI::Option* decode_at = app.add_option("--decode-at", o.decode_at,
                                          "Time decoding behind this many tokens of the text, instead of evaluating")
                               ->type_name("N")
                               ->check(CLI::Range(1, 1 << 24))
                               ->expected(1)
                               ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--list", o.list, "Name the policies and stop");
  app.add_option("--threads", o.threads, "Threads to use")->check(CLI::Range(1, 1024))->capture_default_str();
  CLI::Option* bands =
      app.add_option("--bands", o.band_ends, "Also sum scores up by position: bands that end here, ascending")
          ->type_name("N,N,...")
          ->delimiter(',')
          ->expected(1)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--bands-csv", o.bands_csv, "Write the bands here, comma-separated")->type_name("FILE")->needs(bands);
  app.add_option("--bands-plot", o.bands_plot, "Draw positions against divergence here, by gnuplot: .svg or .png")
      ->type_name("FILE")
      ->needs(bands);
  app.add_option("--csv", o.csv, "Also write the table here, comma-separated")->type_name("FILE");
  CLI::Option* plot = app.add_option("--plot", o.plot, "Draw bytes against divergence here, by gnuplot: .svg or .png")
                          ->type_name("FILE");
  app.add_option("--save", o.save, "Write K and V of the prompt here, all but its last token")->type_name("FILE");
  app.add_option("--load", o.load, "Begin with the K and V of this file, as far as its text and the prompt agree")
      ->type_name("FILE");
  app.add_option("--prompt-file", o.prompt_file, "Take --prompt from here")->type_name("FILE")->excludes(prompt);
  CLI::Option* generate_only = app.add_flag("--generate-only", o.generate_only, "Answer the prompt and stop");
  CLI::Option* probe =
      app.add_option("--probe", o.probes,
                     "Ask for what stands far back in the text, instead of evaluating: copy (a passage that begins "
                     "again) or retrieval (a key's value); may be repeated")
          ->check(CLI::IsMember({"copy", "retrieval"}))
          ->expected(1)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  for (CLI::Option* other : {decode_at, bands, plot, generate_only}) probe->excludes(other);
  app.add_option("--depths", o.depths, "Percent of the text that comes before each of the places that probes ask for")
      ->type_name("P,P,...")
      ->delimiter(',')
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str()
      ->needs(probe);
  app.add_option("--seed", o.seed, "Of what probes draw; each window's is the next one")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->needs(probe);
}

void list_policies() {
  for (const policy_entry& p : all_policies()) std::cout << p.name << (p.by_default ? "" : "  (on request)") << '\n';
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) throw std::runtime_error("cannot read " + path);
  return text;
}

// The output file, opened before the work whose result it takes.
std::ofstream open_output(const std::string& path) {
  std::ofstream file;
  if (path.empty()) return file;
  file.open(path);
  if (!file) throw std::runtime_error("cannot write " + path);
  return file;
}

void check_options(const options& o) {
  if (o.model.empty())
    throw std::invalid_argument("--model FILE is needed: a GGUF file of architecture llama or gemma3");
  if (o.on_cuda()) {
    if (o.integer_weights)
      throw std::invalid_argument("--integer-weights are the processor's alone; --device cuda decodes in fp32");
    if (o.shares())
      throw std::invalid_argument("--shared-prefix, --fork and a second --prompt are the processor's alone");
    if (!o.save.empty() || !o.load.empty())
      throw std::invalid_argument("--save and --load are the processor's alone; --device is cuda");
    require_cuda();
  }
  if (o.shares() && (!o.save.empty() || !o.load.empty()))
    throw std::invalid_argument(
        "--save and --load are of one sequence, without --shared-prefix, --fork or a second --prompt");
  if (!o.decode_at.empty() && (!o.save.empty() || !o.load.empty()))
    throw std::invalid_argument("--save and --load are of a prompt; --decode-at has none");
  if (o.fork > 1 && (o.prompts.size() > 1 || !o.shared_prefix.empty()))
    throw std::invalid_argument("--fork " + std::to_string(o.fork) +
                                " continues one --prompt, without --shared-prefix");
  if (!o.probes.empty() && (!o.save.empty() || !o.load.empty()))
    throw std::invalid_argument("--save and --load are of a prompt; --probe has none");
  for (const std::string& name : o.probes) check_probe({name, o.depths, o.seed});
  if (o.generate_only) return;
  if (o.text.empty()) throw std::invalid_argument("--text FILE is needed, or --generate-only");
  if (!o.plot.empty()) check_picture("--plot", o.plot);
  if (!o.bands_plot.empty()) check_picture("--bands-plot", o.bands_plot);
}

// The first windows of a text, each beginning as the model's texts do.
std::vector<std::vector<int>> text_windows(const std::string& path, int positions, int count, const tokenizer& words,
                                           int context) {
  const std::vector<int> all = words.encode(read_text(path));
  if (positions > context)
    throw std::invalid_argument("--positions " + std::to_string(positions) + " is beyond the model's context of " +
                                std::to_string(context) + " tokens");
  const std::size_t bos = words.adds_bos() ? 1 : 0, share = std::size_t(positions) - bos;
  if (all.size() < share * std::size_t(count))
    throw std::invalid_argument(path + " has " + std::to_string(all.size()) + " tokens; " + std::to_string(count) +
                                " x " + std::to_string(share) + " are needed");
  std::vector<std::vector<int>> windows;
  for (std::size_t i = 0; i < std::size_t(count); ++i) {
    std::vector<int>& window = windows.emplace_back();
    if (bos) window.push_back(*words.bos());
    window.insert(window.end(), all.begin() + std::ptrdiff_t(i * share), all.begin() + std::ptrdiff_t((i + 1) * share));
  }
  return windows;
}

class decode_loop {
 public:
  explicit decode_loop(const options& o)
      : options_(with_prompt(o)),
        bands_(bands_until(o.band_ends, evaluation::first_scored, o.positions)),
        policies_(choose(o)),
        file_(std::make_shared<const gguf_file>(o.model)),
        words_(*file_),
        pool_(o.threads),
        exec_(pool_),
        model_(file_, exec_, {.codes = o.integer_weights}),
        how_(o.integer_weights ? arithmetic::integer : arithmetic::fp32),
        ropes_(ropes_of(model_.config())),
        backend_(open_backend()) {}

  void run() {
    // NOTE: what can be wrong with the files is said before the work begins.
    std::vector<std::vector<int>> windows;
    std::ofstream csv, bands_csv;
    if (!options_.decode_at.empty()) return time_policies();
    if (!options_.probes.empty()) return probe_policies();
    if (!options_.generate_only) {
      windows = read_windows(options_.text, options_.positions, options_.windows);
      csv = open_output(options_.csv);
      bands_csv = open_output(options_.bands_csv);
    }
    const std::vector<int> calibration = calibration_text();
    introduce();
    calibrate(calibration);
    if (options_.shares())
      answer_prompts();
    else
      answer_prompt();
    if (options_.generate_only) return;
    const findings found = evaluate(windows);
    print_table(std::cout, found.rows);
    if (csv.is_open()) {
      write_csv(csv, found.rows);
      if (!csv.flush()) throw std::runtime_error("cannot write " + options_.csv);
    }
    if (!options_.plot.empty()) {
      plot_front(options_.plot, found.rows);
      std::cout << "\nThe picture: " << options_.plot << '\n';
    }
    if (!bands_.empty()) report_bands(found.bands, bands_csv);
  }

 private:
  struct findings {
    std::vector<report_row> rows;
    std::vector<band_row> bands;
  };

  static options with_prompt(options o) {
    if (!o.prompt_file.empty()) o.prompts = {read_text(o.prompt_file)};
    return o;
  }
  static std::vector<policy_entry> choose(const options& o) {
    std::vector<policy_entry> chosen = at_shares(choose_policies(o.policies), o.keep);
    if (!o.on_cuda()) return chosen;
    const std::string said = leave_out_without_kernels(chosen, o.policies);
    if (!said.empty()) std::cout << said << '\n';
    return chosen;
  }

  std::unique_ptr<backend> open_backend() {
    if (options_.on_cuda()) return open_cuda_backend(model_, reading_step);
    return std::make_unique<host_backend>(model_, exec_, how_);
  }

  std::vector<std::vector<int>> read_windows(const std::string& path, int positions, int count) const {
    return text_windows(path, positions, count, words_, model_.config().context);
  }

  session_shape shape_of(kvilt::idx tokens, int max_step) const {
    session_shape shape = shape_for(model_.config(), ropes_, exec_, tokens, max_step);
    for (std::size_t i = 0; i < ranges_.size(); ++i) shape.layers[i].ranges = ranges_[i];
    return shape;
  }

  // As many tokens as are evaluated, but not those; none where no policy asks for them.
  std::vector<int> calibration_text() const {
    const auto asks = std::ranges::find(policies_, true, &policy_entry::calibrated);
    if (asks == policies_.end()) return {};
    if (!options_.calibration.empty()) return read_windows(options_.calibration, options_.positions, 1).front();
    if (options_.text.empty())
      throw std::invalid_argument("policy " + asks->name +
                                  " takes its scales from a text: --calibration FILE is needed");
    return read_windows(options_.text, options_.positions, options_.windows + 1).back();
  }

  void calibrate(const std::vector<int>& text) {
    if (text.empty()) return;
    ranges_ = ranges_over(model_, shape_of(kvilt::idx(text.size()), reading_step), text);
    std::cout << "Static scales are those of " << text.size() << " tokens of "
              << (options_.calibration.empty() ? options_.text + ", behind what is evaluated" : options_.calibration)
              << '\n';
  }

  void introduce() const {
    const model_config& c = model_.config();
    std::cout << options_.model << ": " << c.layers.size() << " layers" << windows_of(c) << ", " << c.q_heads
              << " query and " << c.kv_heads << (c.kv_heads == 1 ? " KV head of " : " KV heads of ") << c.head_dim
              << ", weights " << (model_.weights_are_fp32() || options_.on_cuda() ? "in fp32" : "as stored")
              << (how_ == arithmetic::integer ? ", decoding by integers and 8-bit activations, " : ", ")
              << backend_->name() << '\n';
  }

  void time_policies() {
    std::vector<int> depths = options_.decode_at;
    std::ranges::sort(depths);
    std::ofstream csv = open_output(options_.csv);
    const int length = depths.back() + timed_tokens * static_cast<int>(depths.size());
    const std::vector<int> text = read_windows(options_.text, length, 1).front(), calibration = calibration_text();
    introduce();
    calibrate(calibration);
    const session_shape shape = shape_of(length, reading_step);
    std::cout << "\nMilliseconds a token, at the median of " << timed_tokens << ", behind so many tokens of "
              << options_.text << '\n';
    if (csv.is_open()) csv << "policy,depth,ms\n";
    for (const policy_entry& p : policies_) {
      const auto decode = backend_->open(p, shape);
      for (const decode_time& t : time_decoding(*decode, text, depths)) {
        std::cout << std::left << std::setw(28) << p.name << std::right << std::setw(8) << t.depth << std::fixed
                  << std::setprecision(2) << std::setw(10) << t.milliseconds << std::endl;
        if (csv.is_open()) csv << p.name << ',' << t.depth << ',' << t.milliseconds << '\n';
      }
    }
  }

  void probe_policies() {
    const auto windows = read_windows(options_.text, options_.positions, options_.windows);
    std::vector<std::vector<probe_text>> texts;  // of each probe, of each window
    for (const std::string& name : options_.probes) {
      texts.emplace_back();
      for (std::size_t i = 0; i < windows.size(); ++i)
        texts.back().push_back(probe_text_of({name, options_.depths, options_.seed + i}, windows[i], words_));
    }
    std::ofstream csv = open_output(options_.csv);
    const std::vector<int> calibration = calibration_text();
    introduce();
    calibrate(calibration);
    reference_first();
    const session_shape shape = shape_of(options_.positions, 1);
    const auto caches = backend_->open(policies_, shape);
    std::cout << "\nAsking " << policies_.size() << " caches of " << windows.size() << " x " << options_.positions
              << " tokens of " << options_.text << '\n'
              << std::flush;
    std::vector<probe_report> reports;
    for (std::size_t p = 0; p < texts.size(); ++p) {
      probing run(*caches, exec_);
      {
        long ticks = 0;
        for (const probe_text& text : texts[p]) ticks += run.ticks(text);
        progress bar(ticks);
        for (const probe_text& text : texts[p]) run.read(text, [&] { bar.tick(); });
      }
      reports.push_back({options_.probes[p], {}});
      for (std::size_t i = 0; i < policies_.size(); ++i) {
        probe_row& row = reports.back().rows.emplace_back(probe_row{line_of(i, shape, *caches), run.result(i), {}});
        for (const double depth : options_.depths) row.depths.emplace_back(depth, run.result(i, depth));
      }
      print_probe(std::cout, reports.back());
    }
    if (!csv.is_open()) return;
    write_probes_csv(csv, reports);
    if (!csv.flush()) throw std::runtime_error("cannot write " + options_.csv);
  }

  static std::string windows_of(const model_config& c) {
    const auto local = std::ranges::count_if(c.layers, [](const layer_config& l) { return l.window > 0; });
    if (local == 0) return "";
    const int window = std::ranges::max(c.layers, {}, &layer_config::window).window;
    return " (" + std::to_string(local) + " see the last " + std::to_string(window) + " tokens)";
  }

  void answer_prompt() {
    if (options_.tokens == 0 && options_.save.empty()) return;
    const std::vector<int> prompt = prompt_tokens(words_, options_.prompts[0]);
    std::optional<kvilt::sequence_file<>> saved;
    if (!options_.load.empty()) saved.emplace(options_.load);
    const auto room = std::max(room_for(prompt), saved ? saved->length() : 0);
    const policy_entry policy = answer_policy(default_answer_policy);
    const auto decode = backend_->open(policy, shape_of(room, prompt_step));
    const std::string label = saved || !options_.save.empty() ? model_label(*file_, how_) : std::string();
    std::cout << "\n> " << options_.prompts[0] << "\n\n";
    double loading = 0, saving = 0;
    kvilt::idx loaded = 0;
    if (saved) loading = seconds_of([&] { loaded = load_prompt(exec_, *decode->host_cache(), *saved, label, prompt); });
    std::function<void()> save;
    if (!options_.save.empty())
      save = [&] {
        saving = seconds_of([&] { save_prompt(exec_, *decode->host_cache(), options_.save, label, prompt); });
      };
    const generation_speed speed = answer(*decode, words_, prompt, options_.tokens, std::cout, save);
    std::cout << "\n\n(prompt: ";
    if (saved) std::cout << loaded << " tokens from " << options_.load << " in " << milliseconds(loading) << ", ";
    std::cout << speed.prompt_tokens << " tokens, " << rate(speed.prompt_tokens, speed.prompt_seconds);
    if (options_.tokens > 0) std::cout << "; first token after " << milliseconds(loading + speed.prompt_seconds);
    if (save) std::cout << "; saved in " << milliseconds(saving);
    std::cout << "; answer: " << speed.answer_tokens << " tokens, " << rate(speed.answer_tokens, speed.answer_seconds)
              << "; cache: " << policy.name << ")\n";
  }

  policy_entry answer_policy(const char* by_default) const {
    return options_.policies.empty() ? choose_policies({by_default})[0] : policies_[0];
  }
  kvilt::idx room_for(const std::vector<int>& prompt) const {
    const auto room = kvilt::idx(prompt.size()) + options_.tokens;
    if (prompt.empty()) throw std::invalid_argument("--prompt is empty");
    if (room > model_.config().context)
      throw std::invalid_argument("the prompt has " + std::to_string(prompt.size()) + " tokens and --tokens adds " +
                                  std::to_string(options_.tokens) + "; the model's context is " +
                                  std::to_string(model_.config().context));
    return room;
  }

  // Several sequences in one cache.
  void answer_prompts() {
    const bool forks = options_.fork > 1;
    if (options_.fork > model_.config().vocab)
      throw std::invalid_argument("--fork " + std::to_string(options_.fork) +
                                  " continues the prompt by as many tokens; " + "the model has " +
                                  std::to_string(model_.config().vocab));
    const std::string& told = options_.shared_prefix;
    const std::string before = told.starts_with('@') ? read_text(told.substr(1)) : told;
    std::vector<question> asked;
    kvilt::idx room = 0;
    for (const std::string& p : options_.prompts) {
      asked.push_back({p, prompt_tokens(words_, p, before)});
      room = std::max(room, room_for(asked.back().tokens));
    }
    session_shape shape = shape_of(room, prompt_step);
    shape.sequences = forks ? options_.fork : static_cast<int>(asked.size());
    shape.prefixes = !forks;
    const policy_entry policy = answer_policy(default_sharing_policy);
    host_decoder decode(model_, policy.open(shape), exec_, how_);
    std::cout << "\nIn one cache, " << policy.name << ":\n";
    if (forks) {
      const generation_speed speed =
          continue_each(decode, words_, asked[0].tokens, options_.fork, options_.tokens, std::cout);
      std::cout << "(prompt: " << speed.prompt_tokens << " tokens, computed once, "
                << rate(speed.prompt_tokens, speed.prompt_seconds) << "; " << options_.fork
                << " answers: " << speed.answer_tokens << " tokens, " << rate(speed.answer_tokens, speed.answer_seconds)
                << ")\n";
    } else {
      answer_each(decode, words_, asked, options_.tokens, std::cout);
    }
    print_pages(std::cout, decode.cache().pages());
  }

  template <class Body>
  static double seconds_of(Body body) {
    const auto start = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  static std::string milliseconds(double seconds) {
    std::ostringstream text;
    text << std::fixed << std::setprecision(1) << 1e3 * seconds << " ms";
    return text.str();
  }
  static std::string rate(int tokens, double seconds) {
    return tokens == 0 ? "none" : std::to_string(std::lround(tokens / seconds)) + " tokens/s";
  }

  void report_bands(const std::vector<band_row>& rows, std::ofstream& csv) const {
    print_bands(std::cout, rows);
    if (csv.is_open()) {
      write_bands_csv(csv, rows);
      if (!csv.flush()) throw std::runtime_error("cannot write " + options_.bands_csv);
    }
    if (options_.bands_plot.empty()) return;
    plot_bands(options_.bands_plot, rows);
    std::cout << "\nThe picture of the bands: " << options_.bands_plot << '\n';
  }

  // The policy that the others are compared with comes first; returns whether it was asked for.
  bool reference_first() {
    const policy_entry reference = all_policies().front();
    const auto is_reference = [&](const policy_entry& p) { return p.name == reference.name; };
    const bool asked_for = std::ranges::any_of(policies_, is_reference);
    if (!asked_for) policies_.push_back(reference);
    std::stable_partition(policies_.begin(), policies_.end(), is_reference);
    return asked_for;
  }

  policy_line line_of(std::size_t i, const session_shape& shape, reader& caches) const {
    const policy_entry& p = policies_[i];
    return {p.name, p.columns, p.plan(shape).bytes_per_token, caches.cache(i).cache_bytes()};
  }

  findings evaluate(const std::vector<std::vector<int>>& windows) {
    const bool asked_for = reference_first();
    const session_shape shape = shape_of(options_.positions, 1);
    const auto caches = backend_->open(policies_, shape);
    evaluation run(*caches, exec_);
    std::cout << "\nEvaluating " << policies_.size() << " caches over " << windows.size() << " x " << options_.positions
              << " tokens of " << options_.text << ", scored from position " << evaluation::first_scored << " on\n"
              << std::flush;
    {
      progress bar(run.ticks(options_.positions) * long(windows.size()));
      for (const std::vector<int>& window : windows) run.read(window, [&] { bar.tick(); });
    }
    findings found;
    for (std::size_t i = asked_for ? 0 : 1; i < policies_.size(); ++i) {
      found.rows.push_back({line_of(i, shape, *caches), options_.positions, run.result(i)});
      found.rows.back().integer_decoding = how_ == arithmetic::integer;
      found.rows.back().tokens_per_second = decode_rate(caches->cache(i), windows.back().back());
      for (const band& b : bands_) found.bands.push_back({policies_[i].name, b, run.result(i, b)});
    }
    return found;
  }

  options options_;
  std::vector<band> bands_;
  std::vector<policy_entry> policies_;
  std::shared_ptr<const gguf_file> file_;
  tokenizer words_;
  kvilt::thread_pool pool_;
  kvilt::host exec_;
  transformer model_;
  arithmetic how_;
  std::vector<kvilt::rope_table> ropes_;
  std::vector<layer_ranges> ranges_;  // of each layer, where a policy asks for them
  std::unique_ptr<backend> backend_;
};

int run(int argc, char** argv) {
  CLI::App app("Decodes with a real model through every kind of KV cache, and compares them.");
  options o;
  add_options(app, o);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    std::cerr << "decode_loop: " << e.what() << '\n';
    return usage_error;
  }
  if (o.list) {
    list_policies();
    return 0;
  }
  check_options(o);
  decode_loop(o).run();
  return 0;
}

}  // namespace
}  // namespace example

int main(int argc, char** argv) {
  try {
    return example::run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::cerr << "decode_loop: there is not enough memory for the model and the caches\n";
  } catch (const std::exception& e) {
    std::cerr << "decode_loop: " << e.what() << '\n';
  }
  return example::usage_error;
}
