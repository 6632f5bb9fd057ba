#include "report.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <iomanip>
#include <optional>
#include <sstream>

namespace example {
namespace {

// 1234567 as 1,234,567
std::string grouped(std::int64_t n) {
  std::string digits = std::to_string(n);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  return digits;
}

std::string fixed(double n, int decimals) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(decimals) << n;
  return out.str();
}

// Formats that pack several tokens into one record share its bytes out: a token's are no whole number then.
std::string grouped(double n) {
  if (n == std::floor(n)) return grouped(static_cast<std::int64_t>(n));
  const std::string text = fixed(n, 2);
  const std::size_t point = text.find('.');
  return grouped(std::int64_t{std::stoll(text.substr(0, point))}).append(text, point);
}

std::string readable(std::int64_t bytes) {
  constexpr std::array<const char*, 6> units{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  double amount = double(bytes);
  for (; amount >= 1024 && unit + 1 < units.size(); ++unit) amount /= 1024;
  const int digits_before = amount < 10 ? 1 : amount < 100 ? 2 : 3;
  return fixed(amount, unit == 0 ? 0 : 3 - digits_before).append(" ").append(units[unit]);
}

std::string counted(std::int64_t n, const char* what) {
  return grouped(n).append(" ").append(what).append(n == 1 ? "" : "s");
}

using row = std::array<std::string, 7>;

void print(std::ostringstream& out, const row& cells) {
  constexpr std::array<int, 7> widths{-8, 6, 10, 10, 10, 17, 26};
  for (std::size_t i = 0; i < cells.size(); ++i) {
    out << (widths[i] < 0 ? std::left : std::right) << std::setw(std::abs(widths[i])) << cells[i];
  }
  out << '\n';
}

std::string dims(const layer_group& g) {
  std::string text = std::to_string(g.k_dim);
  if (g.v_dim != g.k_dim) text.append("/").append(std::to_string(g.v_dim));
  return text;
}

std::string sequence_bytes(std::int64_t bytes) {
  return grouped(bytes) + " (" + readable(bytes) + ")";
}

void print_fit(std::ostringstream& out, const plan_request& request, const model_plan& plan) {
  if (plan.cache_bytes) {
    out << "\nA cache for " << counted(*request.sequences, "such sequence") << ": " << sequence_bytes(*plan.cache_bytes)
        << ", page tables included\n";
  }
  if (!request.memory) {
    out << "\nHow many fit is told with --memory, e.g. --memory 80GiB.\n";
    return;
  }
  out << '\n' << readable(*request.memory) << " of memory less " << readable(request.weights) << " of weights hold\n";
  out << "  " << counted(*plan.sequences, "sequence") << " of " << counted(request.tokens, "token") << ", or\n";
  out << "  " << counted(*plan.tokens, "token") << " in sequences of that length, a part of one included\n";
}

nlohmann::ordered_json number(double value) {
  if (value == std::floor(value)) return static_cast<std::int64_t>(value);
  return value;
}

nlohmann::ordered_json number(const std::optional<std::int64_t>& value) {
  if (value) return *value;
  return nullptr;
}

}  // namespace

std::string plan_table(const model_shape& model, const plan_request& request, const model_plan& plan) {
  std::ostringstream out;
  out << model.name << ", " << request.policy << ", sequences of " << counted(request.tokens, "token") << "\n\n";
  print(out, {"group", "layers", "KV heads", "head dim", "window", "bytes per token", "bytes per sequence"});
  int layers = 0;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const layer_group& g = model.groups[i];
    const layer_plan& group = plan.groups[i];
    layers += g.layers;
    print(out, {g.name, std::to_string(g.layers), std::to_string(g.kv_heads), dims(g),
                group.window ? grouped(group.window) : "all", grouped(group.bytes_per_token),
                sequence_bytes(group.bytes_per_sequence)});
  }
  print(out, {"total", std::to_string(layers), "", "", "", grouped(plan.bytes_per_token),
              sequence_bytes(plan.bytes_per_sequence)});
  print_fit(out, request, plan);
  return out.str();
}

std::string plan_json(const model_shape& model, const model_plan& plan) {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const layer_group& g = model.groups[i];
    const layer_plan& group = plan.groups[i];
    nlohmann::ordered_json entry{{"name", g.name},
                                 {"layers", g.layers},
                                 {"kv_heads", g.kv_heads},
                                 {"head_dim", g.k_dim},
                                 {"window", group.window},
                                 {"bytes_per_token", number(group.bytes_per_token)},
                                 {"bytes_per_sequence", group.bytes_per_sequence}};
    if (g.v_dim != g.k_dim) entry["value_dim"] = g.v_dim;
    groups.push_back(entry);
  }
  nlohmann::ordered_json out{{"bytes_per_token", number(plan.bytes_per_token)},
                             {"bytes_per_sequence", plan.bytes_per_sequence},
                             {"sequences", number(plan.sequences)},
                             {"tokens", number(plan.tokens)},
                             {"groups", groups}};
  if (plan.cache_bytes) out["cache_bytes"] = *plan.cache_bytes;
  return out.dump(2);
}

}  // namespace example
