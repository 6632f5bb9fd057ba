// Attention of one decode step on the CPU, over 32,768 tokens with 8 KV heads, beside what the machine could do at most
// in the same moments: read as many bytes, or do that many multiplications with operands in registers.
//   bench_host_attend [--instructions=best|all|portable|NEON|AVX2|AVX-512] [--threads=N] [--runs=N] [--csv=FILE] [--commit=ID]
//                     [--verb=attention|column_mass] [--pages=scattered|in_order] [--page-sizes=16|all]
//                     [--benchmark_filter=^q8/paged16/dim:128/]
// column_mass reads K alone, and its bytes are K's.
// Every number is the median of some runs, in each of which the three follow each other. Names are
// FORMAT/LAYOUT/dim:D/group:G/threads:N/INSTRUCTIONS. On a machine with other work, `chrt -r 1` before it keeps the cores.
#include "ceilings.hpp"
#include "table.hpp"

#include <kvilt/core/thread_pool.hpp>
#include <kvilt/kvilt.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using kvilt::idx;

constexpr int tokens = 32768, kv_heads = 8, largest_group = 8;
constexpr int fill_step = 128;       // tokens that a step appends while the cache is filled
constexpr int page_neighbours = 15;  // sequences that once had the pages between two of a sequence

struct settings {
  std::vector<kvilt::instruction_set> instructions{kvilt::best_instructions()};
  int threads = std::max(int(std::thread::hardware_concurrency()), 1);
  int runs = 7;
  bool scatter_pages = true, all_page_sizes = false, column_mass = false;
  std::string csv, commit = "unknown";
};

// What no cache of the machine keeps from one use to the next.
idx beyond_all_caches() {
  idx last_cache = 0;
  for (const auto& c : benchmark::CPUInfo::Get().caches) last_cache = std::max<idx>(last_cache, c.size);
  return std::max<idx>(idx(256) << 20, 3 * last_cache);
}

std::vector<float> random_rows(idx count, int dim) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(std::size_t(count) * std::size_t(dim));
  for (float& value : x) value = normal(random);
  return x;
}

// A full cache, its policy's type erased. One call of the verb reads one layer; there are as many as it takes to be in no
// cache.
class full_cache {
 public:
  virtual ~full_cache() = default;
  virtual void call(const kvilt::host& exec, int group) = 0;
  // That a call reads: codes and params.
  virtual double bytes() const = 0;
};

template <class Policy>
class filled : public full_cache {
 public:
  filled(int dim, const kvilt::host& exec, const settings& s)
      : dim_(dim),
        column_mass_(s.column_mass),
        policy_(dim),
        layers_(int(kvilt::ceil_div(beyond_all_caches(), idx(bytes())))),
        cache_(shape(layers_), kvilt::host_memory(), policy_),
        workspace_(cache_.workspace_bytes(exec, 1)),
        q_(random_rows(kv_heads * largest_group, dim)),
        out_(q_.size()),
        lse_(std::size_t(kv_heads * largest_group), 5.0f),  // near that of each row: no sum depends on it
        mass_(std::size_t(s.column_mass ? kv_heads * tokens : 0)) {
    if constexpr (in_pages)
      if (s.scatter_pages) scatter_pages();
    fill(exec);
  }

  void call(const kvilt::host& exec, int group) override {
    const auto view = cache_.view(layer_);
    const auto q = kvilt::packed_rows(q_.data(), kv_heads * group, dim_);
    if (column_mass_)
      kvilt::column_mass(exec, attend_, view, step_, q, {lse_.data(), kv_heads * group},
                         kvilt::packed_rows(mass_.data(), kv_heads, tokens));
    else
      attend_(exec, view, step_, q, kvilt::packed_rows(out_.data(), kv_heads * group, dim_));
    layer_ = (layer_ + 1) % layers_;
  }

  double bytes() const override {
    const idx exact = Policy::exact_sinks + Policy::tail, body = tokens - exact;
    const auto row = [&](const auto& format) {
      return double(kvilt::round_up(format.code_bytes(), 16) + format.param_bytes()) / format.rows;
    };
    const double keys = double(exact) * row(policy_.k_exact()) + double(body) * row(policy_.k);
    const double values = double(exact) * row(policy_.v_exact()) + double(body) * row(policy_.v);
    return kv_heads * (column_mass_ ? keys : keys + values);
  }

 private:
  static constexpr bool in_pages = kvilt::tabled_layout<typename Policy::layout_type>;

  static kvilt::cache_shape shape(int layers) {
    return {.layers = layers,
            .kv_heads = kv_heads,
            .sequences = in_pages ? 1 + page_neighbours : 1,
            .tokens = tokens,
            .max_length = tokens,
            .max_step = fill_step};
  }

  // Pages come back in another order than memory's, as they do in an engine that has run for a while.
  void scatter_pages() {
    std::vector<kvilt::sequence> before;
    for (int i = 0; i < page_neighbours; ++i) before.push_back(cache_.open());
    const idx page_tokens = policy_.layout.page_rows({});
    for (idx room = page_tokens; cache_.free_tokens() > 0; room += page_tokens)
      for (const kvilt::sequence s : before)
        if (cache_.free_tokens() > 0) cache_.reserve(s, room);
    std::shuffle(before.begin(), before.end(), std::mt19937(2));
    for (const kvilt::sequence s : before) cache_.close(s);
  }

  // All but the last token, and a step for that one, which stays open.
  void fill(const kvilt::host& exec) {
    sequence_ = cache_.open();
    cache_.reserve(sequence_, tokens);
    const std::vector<float> x = random_rows(2 * fill_step * kv_heads, dim_);
    const float* const k = x.data();
    const float* const v = k + idx(fill_step) * kv_heads * dim_;
    for (int left = tokens; left > 0;) {
      const int count = std::min(fill_step, std::max(left - 1, 1));
      step_ = cache_.begin(exec, {&sequence_, 1}, {&count, 1}, workspace_);
      for (int layer = 0; layer < layers_; ++layer)
        kvilt::append(exec, cache_.view(layer), step_, kvilt::packed_rows(k, kv_heads, dim_),
                      kvilt::packed_rows(v, kv_heads, dim_));
      left -= count;
      if (left > 0) cache_.commit(step_);
    }
  }

  int dim_;
  bool column_mass_;
  Policy policy_;
  int layers_;
  kvilt::cache<Policy> cache_;
  std::vector<unsigned char> workspace_;
  std::vector<float> q_, out_;  // [kv_heads * largest_group][dim]
  std::vector<float> lse_;      // [kv_heads * largest_group]
  std::vector<float> mass_;     // [kv_heads][tokens]
  kvilt::attention<kvilt::causal> attend_{kvilt::causal{}};
  kvilt::sequence sequence_;
  kvilt::step step_;
  int layer_ = 0;
};

// A line of the matrix: a policy, and whether its codes are integers.
struct entry {
  const char* format;
  const char* layout;
  bool integers;
  std::unique_ptr<full_cache> (*fill)(int dim, const kvilt::host& exec, const settings& s);
};

template <class Policy>
std::unique_ptr<full_cache> fill(int dim, const kvilt::host& exec, const settings& s) {
  return std::make_unique<filled<Policy>>(dim, exec, s);
}

template <class Layout>
void add_entries(const char* layout, std::vector<entry>& to) {
  using namespace kvilt;
  to.push_back({"fp32", layout, false, fill<policy<Layout, fp32<>>>});
  to.push_back({"fp16", layout, false, fill<policy<Layout, fp16<>>>});
  to.push_back({"e4m3", layout, false, fill<policy<Layout, e4m3<>>>});
  to.push_back({"q8", layout, true, fill<policy<Layout, q8<>>>});
  to.push_back({"q4rot_s4_t64", layout, true, fill<policy<Layout, rotated<q4<>>, rotated<q4<>>, keep_all, 4, 64>>});
}

// What shows the cost of a page's size.
template <int PageTokens>
void add_page_size(const char* layout, std::vector<entry>& to) {
  using namespace kvilt;
  to.push_back({"fp16", layout, false, fill<policy<paged<PageTokens>, fp16<>>>});
  to.push_back({"q8", layout, true, fill<policy<paged<PageTokens>, q8<>>>});
}

// One row of the table.
struct subject {
  entry what;
  int dim, group, threads;
  kvilt::instruction_set instructions;

  std::string cache_name() const {
    return std::string(what.format) + '/' + what.layout + "/dim:" + std::to_string(dim);
  }
  std::string name() const {
    return cache_name() + "/group:" + std::to_string(group) + "/threads:" + std::to_string(threads) + '/' +
           kvilt::name_of(instructions);
  }
  std::string label() const {
    std::string text = std::string(what.format) + ',' + what.layout;
    for (const int number : {dim, group, threads}) text += ',' + std::to_string(number);
    return text + ',' + kvilt::name_of(instructions);
  }
  // Of a number of K with one of Q; of a number of V with a weight there are as many.
  double products() const { return 1.0 * tokens * kv_heads * group * dim; }
};

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + std::ptrdiff_t(x.size() / 2), x.end());
  return x[x.size() / 2];
}

class measurement {
 public:
  explicit measurement(const settings& s) : settings_(s), pool_(s.threads), read_(beyond_all_caches()) {}

  void operator()(benchmark::State& state, const subject& s) {
    full_cache& cache = cache_of(s);
    const kvilt::host exec = (s.threads == 1 ? kvilt::host() : kvilt::host(pool_)).with(s.instructions);
    std::vector<double> times, reading, rates;
    cache.call(exec, s.group);
    for (auto _ : state) {
      times.push_back(ceilings::seconds_of([&] { cache.call(exec, s.group); }));
      reading.push_back(read_(exec, idx(cache.bytes())));
      rates.push_back(ceilings::product_rate(exec, s.what.integers));
      state.SetIterationTime(times.back());
    }
    const double giga = 1e9, bytes = cache.bytes() / giga, seconds = median(times);
    const double speed = bytes / seconds, read = bytes / median(reading);
    const double ceiling = median(rates) * bytes / (s.products() * (settings_.column_mass ? 1 : 2));
    state.SetLabel(s.label());
    state.counters["ns_token_head"] = seconds * giga / (double(tokens) * kv_heads);
    state.counters["GB_s"] = speed;
    state.counters["read_GB_s"] = read;
    state.counters["instructions_GB_s"] = ceiling;
    state.counters["of_read"] = 100 * speed / read;
    state.counters["of_lower"] = 100 * speed / std::min(read, ceiling);
  }

 private:
  // Filled once for all rows that follow each other.
  full_cache& cache_of(const subject& s) {
    if (name_ != s.cache_name()) {
      cache_.reset();
      cache_ = s.what.fill(s.dim, kvilt::host(pool_), settings_);
      name_ = s.cache_name();
    }
    return *cache_;
  }

  settings settings_;
  kvilt::thread_pool pool_;
  ceilings::read_loop read_;
  std::unique_ptr<full_cache> cache_;
  std::string name_;
};

std::vector<subject> subjects(const settings& s) {
  std::vector<entry> entries;
  add_entries<kvilt::contiguous>("contiguous", entries);
  add_entries<kvilt::paged<16>>("paged16", entries);
  if (s.all_page_sizes) {
    add_page_size<1>("paged1", entries);
    add_page_size<64>("paged64", entries);
    add_page_size<256>("paged256", entries);
  }
  std::vector<int> threads{1};
  if (s.threads > 1) threads.push_back(s.threads);
  std::vector<subject> all;
  for (const entry& what : entries)
    for (const int dim : {128, 64})
      for (const int group : {1, 3, 4, largest_group})
        for (const int count : threads)
          for (const kvilt::instruction_set set : s.instructions) all.push_back({what, dim, group, count, set});
  return all;
}

std::vector<kvilt::instruction_set> instructions_named(const std::string& name) {
  std::vector<kvilt::instruction_set> found;
  for (const auto set : {kvilt::instruction_set::avx512, kvilt::instruction_set::avx2, kvilt::instruction_set::neon,
                         kvilt::instruction_set::portable})
    if (kvilt::supports(set) && (name == "all" || name == kvilt::name_of(set))) found.push_back(set);
  if (name == "best") found.push_back(kvilt::best_instructions());
  if (found.empty())
    throw std::invalid_argument(
        "--instructions takes best, all, portable, NEON, AVX2 or AVX-512 that the machine has, not " + name);
  return found;
}

// Takes what it knows out of `arguments` and leaves Google Benchmark's own.
settings read_settings(std::vector<char*>& arguments) {
  settings s;
  const auto number = [](const std::string& text) {
    const int value = std::atoi(text.c_str());
    if (value < 1) throw std::invalid_argument(text + " is not a number from 1 on");
    return value;
  };
  const std::vector<std::pair<std::string, std::function<void(const std::string&)>>> known{
      {"--instructions=", [&](const std::string& text) { s.instructions = instructions_named(text); }},
      {"--threads=", [&](const std::string& text) { s.threads = number(text); }},
      {"--runs=", [&](const std::string& text) { s.runs = number(text); }},
      {"--verb=",
       [&](const std::string& text) {
         if (text != "attention" && text != "column_mass")
           throw std::invalid_argument("--verb takes attention or column_mass, not " + text);
         s.column_mass = text == "column_mass";
       }},
      {"--pages=",
       [&](const std::string& text) {
         if (text != "scattered" && text != "in_order")
           throw std::invalid_argument("--pages takes scattered or in_order, not " + text);
         s.scatter_pages = text == "scattered";
       }},
      {"--page-sizes=",
       [&](const std::string& text) {
         if (text != "16" && text != "all") throw std::invalid_argument("--page-sizes takes 16 or all, not " + text);
         s.all_page_sizes = text == "all";
       }},
      {"--csv=", [&](const std::string& text) { s.csv = text; }},
      {"--commit=", [&](const std::string& text) { s.commit = text; }}};
  const auto taken = [&](const std::string& argument) {
    for (const auto& [option, take] : known)
      if (argument.starts_with(option)) return take(argument.substr(option.size())), true;
    return false;
  };
  std::erase_if(arguments, taken);
  return s;
}

void run(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  const settings s = read_settings(arguments);
  int count = int(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data()))
    throw std::invalid_argument("its source names the options at the top");

  measurement measure(s);
  for (const subject& row : subjects(s))
    benchmark::RegisterBenchmark(row.name().c_str(), [&measure, row](benchmark::State& state) { measure(state, row); })
        ->Iterations(s.runs)
        ->UseManualTime();
  table out({{"format", 12},
             {"layout", 10},
             {"dim", 4},
             {"group", 5},
             {"threads", 7},
             {"instructions", 12},
             {"ns_token_head", 13, "%.3f"},
             {"GB_s", 6, "%.2f"},
             {"read_GB_s", 9, "%.2f"},
             {"instructions_GB_s", 17, "%.2f"},
             {"of_read", 7, "%.0f"},
             {"of_lower", 8, "%.0f"}},
            s.csv, date() + ',' + cpu() + ',' + s.commit);
  benchmark::RunSpecifiedBenchmarks(&out);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_host_attend: %s\n", e.what());
    return 2;
  }
  return 0;
}
