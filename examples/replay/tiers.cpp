#include "tiers.hpp"

#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string_view>

namespace example {
namespace {

struct unit {
  std::string_view name;
  double bytes;
};
constexpr unit units[] = {{"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};

// A positive number, and what stands behind it.
double number(std::string_view text, std::string_view& rest, const std::string& whole) {
  double n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || !(n > 0) || n > 1e6)
    throw std::invalid_argument("--tier " + whole + "; host:SIZE or disk:SIZE, as disk:2TB@7, can be");
  rest = text.substr(std::size_t(end - text.data()));
  return n;
}

}  // namespace

tier_spec tier_of(const std::string& text) {
  const std::size_t colon = text.find(':');
  tier_spec tier{text.substr(0, colon), 0, 0};
  std::string_view rest = std::string_view(text).substr(colon == text.npos ? text.size() : colon + 1);
  if (tier.name == "host")
    tier.bytes_per_second = 50e9;
  else if (tier.name == "disk")
    tier.bytes_per_second = 5e9;
  else
    rest = {};
  const double size = number(rest, rest, text);
  const std::string_view named = rest.substr(0, rest.find('@'));
  for (const unit& u : units)
    if (named == u.name) tier.bytes = std::int64_t(size * u.bytes);
  if (tier.bytes == 0)
    throw std::invalid_argument("--tier " + text + " has a size in none of MB, GB, TB, MiB, GiB, TiB");
  rest = rest.substr(named.size());
  if (!rest.empty()) tier.bytes_per_second = 1e9 * number(rest.substr(1), rest, text);
  if (!rest.empty()) throw std::invalid_argument("--tier " + text + " goes on behind its GB/s");
  return tier;
}

}  // namespace example
