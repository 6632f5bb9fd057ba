// What pages, and room reserved ahead, waste: conversations come and go, and each token takes its room when it comes.
// A cache's own page manager counts pages, and plan_bytes says what they weigh; nothing is timed.
//   bench_host_reserve [--mean=TOKENS] [--seed=N] [--csv=FILE]
#include <kvilt/kvilt.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

using kvilt::idx;

constexpr int open_at_once = 64, longest = 4096;
constexpr int served = 20000, served_before = 1000;  // conversations; the first ones all begin at the same time
constexpr double gib = 1 << 30, memory = 64 * gib;

struct settings {
  double mean = 300;
  unsigned seed = 1;
  std::string csv;
};

// Lengths of conversations, log-normal: half of them are shorter than 0.61 of the mean, one in 40 longer than 4.3 times.
// NOTE: spelt out, since what the standard library draws differs from one to the next.
std::vector<int> conversation_lengths(const settings& s) {
  constexpr double sigma = 1, pi = 3.14159265358979;
  std::mt19937 random(s.seed);
  const auto uniform = [&] { return (random() + 0.5) / 4294967296.0; };
  std::vector<int> lengths(served);
  for (int& length : lengths) {
    const double radius = std::sqrt(-2 * std::log(uniform())), normal = radius * std::cos(2 * pi * uniform());
    const double tokens = std::exp(std::log(s.mean) - sigma * sigma / 2 + sigma * normal);
    length = int(std::fmin(std::fmax(tokens, 1), longest));
  }
  return lengths;
}

struct counts {
  double live_tokens = 0, pages = 0;  // of all that are open, on average
};

// Runs a cache with one head of 8 numbers, whose pages are counted alike.
template <class Layout>
counts serve(const Layout& layout, const std::vector<int>& lengths) {
  using policy = kvilt::policy<Layout, kvilt::fp16<8>>;
  const idx room = idx(open_at_once) * (longest + layout.page_rows({open_at_once, longest, 1}));
  kvilt::cache<policy> cache(
      {.layers = 1, .kv_heads = 1, .sequences = open_at_once, .tokens = room, .max_length = longest},
      kvilt::host_memory(), policy({}, {}, {}, layout));
  struct conversation {
    kvilt::sequence sequence;
    int tokens = 0, length = 0;
  };
  std::vector<conversation> open(open_at_once);
  for (conversation& c : open) c.sequence = cache.open();
  counts sum;
  idx samples = 0;
  for (std::size_t next = 0; next < lengths.size();) {
    idx live = 0;
    for (conversation& c : open) {
      if (c.tokens == c.length && next < lengths.size()) {
        cache.close(c.sequence);
        c = {cache.open(), 0, lengths[next++]};
      }
      cache.reserve(c.sequence, ++c.tokens);
      live += c.tokens;
    }
    if (next < served_before) continue;
    sum.live_tokens += double(live), sum.pages += double(cache.bytes().body_pages - cache.free_pages());
    ++samples;
  }
  return {sum.live_tokens / double(samples), sum.pages / double(samples)};
}

// What the same pages weigh in Llama-3-8B's shape.
template <class Layout>
kvilt::budget weigh(const Layout& layout) {
  const kvilt::policy<Layout, kvilt::fp16<128>> policy({}, {}, {}, layout);
  return kvilt::plan_bytes(policy, {.layers = 32,
                                    .kv_heads = 8,
                                    .sequences = open_at_once,
                                    .tokens = idx(open_at_once) * longest,
                                    .max_length = longest});
}

template <class Layout>
void report(const std::string& name, const Layout& layout, const std::vector<int>& lengths, std::ostream& out) {
  constexpr int layers = 32;
  const counts c = serve(layout, lengths);
  const kvilt::budget b = weigh(layout);
  const double each = 1.0 / open_at_once;
  const double live = c.live_tokens * b.bytes_per_token * each;
  const double pages = c.pages * double(b.body_page_bytes) * layers * each, tables = double(b.table_bytes) * each;
  out << name << ',' << layout.page_rows({open_at_once, longest, 1}) << std::fixed << std::setprecision(1) << ','
      << c.live_tokens * each << ',' << std::setprecision(0) << live << ',' << pages << ',' << tables
      << std::setprecision(2) << ',' << 100 * (1 - live / (pages + tables)) << std::setprecision(0) << ','
      << std::floor(memory / (pages + tables)) << '\n';
}

settings read_settings(int argc, char** argv) {
  settings s;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const std::size_t value = argument.find('=') + 1;
    if (argument.starts_with("--mean="))
      s.mean = std::atof(argv[i] + value);
    else if (argument.starts_with("--seed="))
      s.seed = unsigned(std::atoi(argv[i] + value));
    else if (argument.starts_with("--csv="))
      s.csv = argument.substr(value);
    else
      throw std::invalid_argument("the source names the options at its top; there is no " + std::string(argument));
  }
  if (!(s.mean >= 1 && s.mean <= longest)) throw std::invalid_argument("--mean takes 1 to 4096");
  return s;
}

void run(const settings& s) {
  std::ofstream csv;
  if (!s.csv.empty()) csv.open(s.csv);
  if (!s.csv.empty() && !csv) throw std::runtime_error("cannot write " + s.csv);
  std::ostream& out = s.csv.empty() ? std::cout : csv;
  const std::vector<int> lengths = conversation_lengths(s);
  out << "layout,rows,live_tokens,live_bytes,held_bytes,table_bytes,waste_percent,in_64_gib\n";
  for (const int rows : {1, 16, 64, 256})
    report("pages of " + std::to_string(rows), kvilt::paged<>(rows), lengths, out);
  report("contiguous", kvilt::contiguous(), lengths, out);
  if (!out.flush()) throw std::runtime_error("cannot write " + s.csv);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(read_settings(argc, argv));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_host_reserve: %s\n", e.what());
    return 2;
  }
  return 0;
}
