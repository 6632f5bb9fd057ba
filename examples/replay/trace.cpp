#include "trace.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <unordered_map>

namespace example {
namespace {

using nlohmann::json;

constexpr double longest = 1 << 30;                        // tokens
constexpr std::uint64_t answers = std::uint64_t{1} << 63;  // names of answers; blocks have those below

// SplitMix64's mixing (Steele, Lea, Flood 2014).
std::uint64_t mixed(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

// Any names, numbered in the order in which they come.
class numbering {
 public:
  std::uint32_t of(std::uint64_t name) {
    return numbers_.try_emplace(name, std::uint32_t(numbers_.size())).first->second;
  }

 private:
  std::unordered_map<std::uint64_t, std::uint32_t> numbers_;
};

std::invalid_argument wrong(const std::string& where, const std::string& what) {
  return std::invalid_argument(where + ": " + what);
}

double number(const json& line, const char* key, double least, double most, const std::string& where) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_number()) throw wrong(where, "no number " + std::string(key));
  const double n = found->get<double>();
  if (!(n >= least && n <= most))
    throw wrong(where, std::string(key) + " is " + found->dump() + "; " + std::to_string(std::int64_t(least)) + " to " +
                           std::to_string(std::int64_t(most)) + " can be");
  return n;
}
std::int64_t whole(const json& line, const char* key, double least, double most, const std::string& where) {
  const double n = number(line, key, least, most, where);
  if (n != std::floor(n)) throw wrong(where, std::string(key) + " is " + line[key].dump() + ", no whole number");
  return std::int64_t(n);
}

request read_request(const std::string& text, const std::string& where, numbering& blocks) {
  const json line = json::parse(text, nullptr, false);
  if (!line.is_object()) throw wrong(where, "not a JSON object: " + text.substr(0, 40));
  request r;
  r.arrival = 1e-3 * number(line, "timestamp", 0, 0x1p53, where);
  r.input = whole(line, "input_length", 1, longest, where);
  r.output = whole(line, "output_length", 0, longest, where);
  if (line.contains("priority")) r.priority = int(whole(line, "priority", 0, 7, where));
  const auto ids = line.find("hash_ids");
  const std::int64_t needed = (r.input + block_tokens - 1) / block_tokens;
  if (ids == line.end() || !ids->is_array()) throw wrong(where, "no list hash_ids");
  if (std::int64_t(ids->size()) != needed)
    throw wrong(where, std::to_string(ids->size()) + " hash_ids; " + std::to_string(r.input) + " tokens have " +
                           std::to_string(needed) + " blocks of 512");
  for (const json& id : *ids) {
    if (!id.is_number_unsigned()) throw wrong(where, "hash id " + id.dump() + "; whole numbers from 0 on can be");
    r.blocks.push_back(blocks.of(id.get<std::uint64_t>()));
    r.prompt.push_back(
        {r.blocks.back(), std::min(block_tokens, r.input - block_tokens * std::int64_t(r.prompt.size()))});
  }
  return r;
}

void sort_by_arrival(trace& t) {
  std::ranges::stable_sort(t, {}, &request::arrival);
}

class dice {
 public:
  explicit dice(std::uint64_t seed) : state_(mixed(seed)) {}
  std::uint64_t next() { return mixed(state_++); }
  double uniform() { return (double(next() >> 11) + 0.5) * 0x1p-53; }
  double exponential(double mean) { return -mean * std::log(uniform()); }
  std::int64_t log_normal(double mean, double most) {
    const double radius = std::sqrt(-2 * std::log(uniform())), normal = radius * std::cos(2 * M_PI * uniform());
    return std::int64_t(std::clamp(mean * std::exp(normal - 0.5), 1.0, most));  // sigma 1
  }

 private:
  std::uint64_t state_;
};

// Each block's name is that of the text up to its end, as in Mooncake's traces.
void name_blocks(request& r, numbering& blocks) {
  std::vector<kvilt::token_id> text;
  write_text(r, 0, text);
  std::uint64_t before = 0;
  const kvilt::token_hash hash;
  for (std::size_t at = 0; at < text.size(); at += std::size_t(block_tokens)) {
    const int tokens = int(std::min(std::size_t(block_tokens), text.size() - at));
    before = hash.page(before, &text[at], tokens);
    r.blocks.push_back(blocks.of(before));
  }
}

void add_conversation(trace& t, double begin, dice& random) {
  constexpr std::int64_t longest_context = 8192;
  constexpr std::uint64_t system_prompts = 8;
  request r;
  r.arrival = begin;
  r.prompt.push_back({random.next() % system_prompts, 256});
  r.input = 256;
  for (bool more = true; more;) {
    const piece asked{random.next() >> 1, random.log_normal(100, 2048)};
    r.prompt.push_back(asked);
    r.input += asked.tokens;
    r.output = random.log_normal(200, 2048);
    r.answer = random.next() | answers;
    t.push_back(r);
    r.prompt.push_back({r.answer, r.output});
    r.input += r.output;
    r.arrival += random.exponential(30);
    more = random.next() % 4 != 0 && r.input < longest_context;
  }
}

std::uint64_t part(std::string_view text, const std::string& whole) {
  std::uint64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size())
    throw std::invalid_argument("cannot generate '" + whole + "'; chat:N or chat:N:SEED can be");
  return n;
}

}  // namespace

trace read_trace(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::invalid_argument("cannot read " + path);
  trace t;
  numbering blocks;
  std::size_t line = 0;
  for (std::string text; std::getline(in, text);) {
    ++line;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    t.push_back(read_request(text, path + ":" + std::to_string(line), blocks));
    t.back().answer = answers | line;
  }
  if (in.bad()) throw std::invalid_argument("cannot read " + path);
  if (t.empty()) throw std::invalid_argument(path + " has no requests");
  sort_by_arrival(t);
  return t;
}

trace generated_trace(const std::string& what) {
  constexpr std::string_view kind = "chat:";
  constexpr std::uint64_t most = 10'000'000;
  const std::string_view rest = std::string_view(what).substr(std::min(kind.size(), what.size()));
  const std::size_t colon = rest.find(':');
  if (!what.starts_with(kind)) part("", what);
  const std::uint64_t requests = part(rest.substr(0, colon), what);
  const std::uint64_t seed = colon == rest.npos ? 1 : part(rest.substr(colon + 1), what);
  if (requests < 1 || requests > most)
    throw std::invalid_argument(what + " has " + std::to_string(requests) + " requests; 1 to 10000000 can be");
  trace t;
  dice random(seed);
  for (double begin = 0; t.size() < requests; begin += random.exponential(1)) add_conversation(t, begin, random);
  sort_by_arrival(t);
  t.resize(requests);
  numbering blocks;
  for (request& r : t) name_blocks(r, blocks);
  return t;
}

kvilt::token_id token_of(std::uint64_t piece_name, std::int64_t at) {
  return kvilt::token_id(mixed(mixed(piece_name) + std::uint64_t(at)) % 128'000);
}

void write_text(const request& r, std::int64_t said, std::vector<kvilt::token_id>& text) {
  text.clear();
  text.reserve(std::size_t(r.input + said));
  const auto write = [&](const piece& p) {
    for (std::int64_t i = 0; i < p.tokens; ++i) text.push_back(token_of(p.name, i));
  };
  for (const piece& p : r.prompt) write(p);
  write({r.answer, said});
}

}  // namespace example
