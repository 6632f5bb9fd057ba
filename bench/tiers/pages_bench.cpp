// Pages of 16 tokens on their way to a tier and back, in batches of scattered pages, beside memcpy of as many bytes in the
// same run. A page is that of Llama 3 8B in 16 bit, 2 MiB in 32 pieces, or in 4 bit, 512 KiB and scales in 64.
//   bench_tiers_pages [--pages=N] [--rounds=N] [--file=PATH]
#include <kvilt/kvilt.hpp>
#include <kvilt/tiers/file_transfer.hpp>
#include <kvilt/tiers/memory_transfer.hpp>
#include <kvilt/tiers/file_transfer.hpp>
#include <kvilt/tiers/memory_transfer.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

using kvilt::idx;

struct settings {
  int pages = 256, rounds = 9;
  std::string file = "kvilt_bench_tier";
};

settings read_settings(int argc, char** argv) {
  settings s;
  for (int i = 1; i < argc; ++i) {
    const std::string_view text = argv[i];
    const std::string value(text.substr(std::min(text.find('=') + 1, text.size())));
    if (text.starts_with("--pages="))
      s.pages = std::stoi(value);
    else if (text.starts_with("--rounds="))
      s.rounds = std::stoi(value);
    else if (text.starts_with("--file="))
      s.file = value;
    else
      throw std::invalid_argument("unknown option " + std::string(text));
  }
  return s;
}

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> all) {
  std::ranges::nth_element(all, all.begin() + std::ptrdiff_t(all.size() / 2));
  return all[all.size() / 2];
}

// Memory as caches have it, on huge pages where the system gives them, met already.
using host_bytes = kvilt::buffer<kvilt::memory_space::host>;
host_bytes filled(idx bytes, int with) {
  host_bytes memory(kvilt::host_memory(), std::size_t(bytes));
  std::memset(memory.data(), with, memory.bytes());
  return memory;
}

void run(kvilt::transfer& moves, kvilt::copy_way way, const std::vector<kvilt::page_copy>& batch) {
  std::vector<kvilt::copy_result> results(batch.size());
  const kvilt::transfer::ticket t = moves.start(way, batch);
  while (!moves.done(t, results)) {
  }
  for (const kvilt::copy_result r : results)
    if (r != kvilt::copy_result::done) throw std::runtime_error("a copy failed");
}

// `pieces`: bytes of each layer's.
void measure(const char* name, const settings& s, const std::vector<idx>& pieces) {
  constexpr int layers = 32;
  const idx pool_pages = 2 * s.pages;
  std::vector<host_bytes> memory;
  std::vector<kvilt::page_piece> parts;
  for (int layer = 0; layer < layers; ++layer)
    for (const idx bytes : pieces) {
      memory.push_back(filled(bytes * pool_pages, layer));
      parts.push_back({memory.back().data(), bytes, bytes});
    }
  const kvilt::page_memory pool(parts, pool_pages);
  kvilt::memory_transfer<> host(pool, s.pages, kvilt::host_memory());
  kvilt::file_transfer<> disk(pool, s.pages, s.file);
  // Each page once, in no order.
  std::vector<kvilt::page_copy> batch;
  for (idx i = 0; i < s.pages; ++i)
    batch.push_back({i, kvilt::page_id(i * 167 % pool_pages), nullptr, std::uint64_t(i)});

  const idx bytes = pool.page_bytes() * s.pages;
  const host_bytes from = filled(bytes, 1), to = filled(bytes, 2);
  std::vector<double> copies, stores, loads, writes, reads;
  for (int round = 0; round <= s.rounds; ++round) {
    const double copy = seconds_of([&] { std::memcpy(to.data(), from.data(), from.bytes()); });
    const double store = seconds_of([&] { run(host, kvilt::copy_way::store, batch); });
    const double load = seconds_of([&] { run(host, kvilt::copy_way::load, batch); });
    const double write = seconds_of([&] { run(disk, kvilt::copy_way::store, batch); });
    const double read = seconds_of([&] { run(disk, kvilt::copy_way::load, batch); });
    if (round == 0) continue;  // memory is met for the first time
    copies.push_back(copy), stores.push_back(store), loads.push_back(load);
    writes.push_back(write), reads.push_back(read);
  }
  const auto rate = [&](const std::vector<double>& of) { return double(bytes) / median(of) / 1e9; };
  std::printf("| %s | %.2f | %d | %.1f | %.1f | %.1f | %.0f, %.0f | %.1f | %.1f |\n", name,
              double(pool.page_bytes()) / (1 << 20), int(parts.size()), rate(copies), rate(stores), rate(loads),
              100 * rate(stores) / rate(copies), 100 * rate(loads) / rate(copies), rate(writes), rate(reads));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const settings s = read_settings(argc, argv);
    std::printf(
        "| pages of 16 tokens | MiB | pieces | memcpy, GB/s | store | load | of memcpy, %% | to a file, cached | back "
        "|\n"
        "|---|---|---|---|---|---|---|---|---|\n");
    measure("16 bit", s, {65536});
    measure("4 bit and scales", s, {16384, 1024});
    measure("16 bit, K and V apart by head", s, std::vector<idx>(16, 4096));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_tiers_pages: %s\n", e.what());
    return 2;
  }
}
