// Saving and restoring a sequence, beside a plain write(2) and read(2) of the same file in the same run, from and to the
// system's cache of files. Rounds alternate; medians are printed.
//   bench_tiers_file [--mib=N] [--rounds=N] [--threads=N] [--file=PATH]
#include <kvilt/core/thread_pool.hpp>
#include <kvilt/kvilt.hpp>
#include <kvilt/tiers/file_transfer.hpp>
#include <kvilt/tiers/memory_transfer.hpp>
#include <kvilt/tiers/page_tiers.hpp>
#include <kvilt/tiers/restore.hpp>
#include <kvilt/tiers/save.hpp>

#include <algorithm>
#include <chrono>
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
  int mib = 1024, rounds = 7, threads = 1;
  std::string file = "kvilt_bench_sequence";
};

settings read_settings(int argc, char** argv) {
  settings s;
  for (int i = 1; i < argc; ++i) {
    const std::string_view text = argv[i];
    const std::string value(text.substr(std::min(text.find('=') + 1, text.size())));
    if (text.starts_with("--mib="))
      s.mib = std::stoi(value);
    else if (text.starts_with("--rounds="))
      s.rounds = std::stoi(value);
    else if (text.starts_with("--threads="))
      s.threads = std::stoi(value);
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

void check(bool held, const char* what) {
  if (!held) throw std::runtime_error(what);
}

// In calls of 1 MiB, over memory that is there already.
void plain_read(const std::string& path, std::vector<unsigned char>& to) {
  const kvilt::detail::file file(path.c_str(), O_RDONLY);
  check(file.error() == 0, "cannot read the file");
  constexpr std::size_t call = 1 << 20;
  for (std::size_t at = 0; at < to.size(); at += call) {
    const std::size_t n = std::min(call, to.size() - at);
    check(::read(file.descriptor(), to.data() + at, n) == ssize_t(n), "the file is shorter than it was");
  }
}
void plain_write(const std::string& path, const std::vector<unsigned char>& from) {
  const kvilt::detail::file file(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  check(file.error() == 0, "cannot write the file");
  constexpr std::size_t call = 1 << 20;
  for (std::size_t at = 0; at < from.size(); at += call) {
    const std::size_t n = std::min(call, from.size() - at);
    check(::write(file.descriptor(), from.data() + at, n) == ssize_t(n), "the disk is full");
  }
}

template <class Policy>
void measure(const char* name, const settings& s) {
  kvilt::thread_pool pool(s.threads);
  const kvilt::host host(pool);
  const Policy policy;
  constexpr int layers = 32, kv_heads = 8;
  const double token_bytes =
      kvilt::plan_bytes(policy, {.layers = layers, .kv_heads = kv_heads, .tokens = 1}).bytes_per_token;
  const int tokens = int(double(s.mib) * (1 << 20) / token_bytes) / 64 * 64;
  const kvilt::cache_shape shape = {.layers = layers, .kv_heads = kv_heads, .sequences = 2, .tokens = 2 * idx(tokens)};
  kvilt::cache<Policy> cache(shape, kvilt::host_memory(), policy);
  // Rows whose codes are of no interest, but not all alike.
  const kvilt::sequence text = cache.open();
  cache.reserve(text, tokens);
  for (int layer = 0; layer < layers; ++layer) {
    unsigned char* first = cache.view(layer).first().planes.k_codes.base;
    for (idx i = 0; i < cache.bytes().kv_bytes / layers / 2; i += 8) {
      const std::uint64_t word = std::uint64_t(i) * 0x9e3779b97f4a7c15u + std::uint64_t(layer);
      std::memcpy(first + i, &word, 8);
    }
  }
  cache.adopt(text, cache.holds(text, tokens));

  kvilt::save(host, cache, text, s.file, {}, kvilt::durability::program);
  const idx bytes = kvilt::detail::file(s.file.c_str(), O_RDONLY).size();
  std::vector<unsigned char> plain(std::size_t(bytes), 1);
  std::vector<double> reads, restores, writes, saves, copies, durable;
  std::vector<unsigned char> other(plain.size(), 2);
  for (int round = 0; round < s.rounds; ++round) {
    reads.push_back(seconds_of([&] { plain_read(s.file, plain); }));
    const kvilt::sequence_file<> file(s.file);
    kvilt::sequence back;
    restores.push_back(seconds_of([&] { back = kvilt::restore(host, cache, file); }));
    cache.close(back);
    copies.push_back(seconds_of([&] { std::memcpy(other.data(), plain.data(), plain.size()); }));
    writes.push_back(seconds_of([&] { plain_write(s.file + ".plain", plain); }));
    saves.push_back(seconds_of([&] { kvilt::save(host, cache, text, s.file, {}, kvilt::durability::program); }));
  }
  durable.push_back(seconds_of([&] { kvilt::save(host, cache, text, s.file); }));
  ::unlink((s.file + ".plain").c_str());
  ::unlink(s.file.c_str());
  const auto rate = [&](const std::vector<double>& of) { return double(bytes) / median(of) / 1e9; };
  std::printf("| `%s` | %d | %.2f | %.1f | %.1f | %.1f | %.0f | %.1f | %.1f | %.0f | %.2f |\n", name, s.threads,
              double(bytes) / (1 << 30), rate(copies), rate(reads), rate(restores),
              100 * median(reads) / median(restores), rate(writes), rate(saves), 100 * median(writes) / median(saves),
              durable[0]);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    using namespace kvilt;
    const settings s = read_settings(argc, argv);
    std::printf(
        "| policy | threads | GiB | memcpy, GB/s | read(2) | restore | of read(2), %% | write(2) | save | of write(2), "
        "%% |"
        " durable save, s |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    measure<policy<paged<16>, bf16<128>>>("paged16 bf16", s);
    measure<policy<paged<16>, rotated<q8<128>>, q4<128>>>("paged16 q8rot q4", s);
    measure<policy<contiguous, bf16<128>>>("contiguous bf16", s);
    measure<policy<paged<1>, bf16<128>>>("paged1 bf16", s);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_tiers_file: %s\n", e.what());
    return 2;
  }
}
