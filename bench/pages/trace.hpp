#pragma once

#include <kvilt/pages/token_hash.hpp>

#include <charconv>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace bench {

struct request {
  std::int64_t tokens = 0;
  std::vector<std::uint32_t> blocks;  // names of 512 tokens each
};
struct trace {
  std::vector<request> requests;
};

// SplitMix64's mixing (Steele, Lea, Flood 2014).
inline std::uint64_t mixed(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}
class dice {
 public:
  explicit dice(std::uint64_t seed) : state_(seed) {}
  std::uint64_t below(std::uint64_t n) { return mixed(state_++) % n; }

 private:
  std::uint64_t state_;
};

inline kvilt::token_id token_of(std::uint64_t place) {
  return kvilt::token_id(mixed(place) % 128'000);
}
// A trace says which blocks are equal, not what is in them: tokens that depend on the block's name.
inline void write_prompt(const request& r, std::vector<kvilt::token_id>& text) {
  text.resize(std::size_t(r.tokens));
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = token_of(std::uint64_t(r.blocks[i / 512]) * 512 + i % 512);
}

// The number after `"key":`, and where it ends.
inline std::int64_t number_after(const std::string& line, const std::string& key) {
  const std::size_t at = line.find('"' + key + "\":");
  if (at == std::string::npos) throw std::runtime_error("no " + key + " in: " + line.substr(0, 80));
  std::int64_t n = 0;
  const char* first = line.data() + line.find_first_not_of(' ', at + key.size() + 3);
  if (std::from_chars(first, line.data() + line.size(), n).ec != std::errc())
    throw std::runtime_error("no number after " + key + " in: " + line.substr(0, 80));
  return n;
}

inline trace read_trace(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error(path + ": not found");
  trace t;
  for (std::string line; std::getline(in, line);) {
    request r;
    r.tokens = number_after(line, "input_length");
    const char* at = line.data() + line.find('[') + 1;
    for (const char* end = line.data() + line.find(']'); at < end; ++at) {
      if (*at < '0' || *at > '9') continue;
      at = std::from_chars(at, end, r.blocks.emplace_back()).ptr;
    }
    if (r.tokens > std::int64_t(r.blocks.size()) * 512)
      throw std::runtime_error(path + ": fewer blocks than tokens in: " + line.substr(0, 80));
    t.requests.push_back(std::move(r));
  }
  return t;
}

}  // namespace bench
